"""Choice: which of the measured candidates shall run, and why.

Pure: numbers in, one of them out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edge_sdk.tuning.candidate import Measurement

# What a window does not see: the frame's way to the loop, encoding, and the slowest of ten thousand frames. At a p99
# just below the budget the drop rule leaves frames out all the time.
_SAFE = 0.9  # of the budget

# Two windows of the same settings differ by that much: less says nothing, and must not decide.
_SAME_RELATIVE = 1.1
_SAME_MS = 0.2
_SAME_SHARE = 0.01
# The p99 of fifty frames is one frame: where half of the frames are as fast, a p99 up to that was an accident.
_SAME_P50 = 1.05
_ACCIDENT = 1.5


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a candidate has to keep.

    Attributes:
        budget_ms: capture to outbox.
        cpu_share: CPU time over time, 1 is one core; None without a limit.
    """

    budget_ms: float
    cpu_share: float | None = None

    def keeps_budget(self, measured: Measurement) -> bool:
        """Whether its p99 fits."""
        return measured.p99_ms <= self.budget_ms

    def keeps_cpu(self, measured: Measurement) -> bool:
        """Whether its CPU share fits."""
        return self.cpu_share is None or measured.cpu_share <= self.cpu_share

    def is_safe(self, measured: Measurement) -> bool:
        """Whether both fit, with a tenth of the budget to spare."""
        return measured.p99_ms <= self.budget_ms * _SAFE and self.keeps_cpu(measured)


def choose(measured: Sequence[Measurement], limits: Limits) -> tuple[Measurement, str]:
    """The one that shall run, and the reason in a few words.

    The highest measured quality whose p99 meets the budget, with a tenth to spare, and whose CPU share meets its limit;
    of several the fastest, of those that are as fast the one that takes the least CPU, of those the first. Where none
    has that to spare, the same of those that just meet the budget; where none meets both, the least CPU share that
    meets the budget; where none meets the budget, the least p99.

    Args:
        measured: one or more, in the order of measuring.
        limits: what has to be kept.
    """
    in_time = [m for m in measured if limits.keeps_budget(m)]
    good = [m for m in in_time if limits.is_safe(m)] or [m for m in in_time if limits.keeps_cpu(m)]
    if good:
        highest = max(_rank(m) for m in good)
        chosen = _fastest([m for m in good if _rank(m) == highest])
        return chosen, _praise(chosen, measured, limits)
    if in_time:
        chosen = min(in_time, key=lambda m: m.cpu_share)
        return chosen, (
            f"a CPU share of {limits.cpu_share:g} cannot be kept here: the least of {_count(measured)} is "
            f"{chosen.cpu_share:.2f}"
        )
    chosen = min(measured, key=lambda m: m.p99_ms)
    return chosen, (
        f"a budget of {limits.budget_ms:g} ms cannot be kept here: the fastest of {_count(measured)} takes "
        f"{chosen.p99_ms:.3g} ms (p99)"
    )


def _rank(measured: Measurement) -> float:
    return -1.0 if measured.quality is None else measured.quality


def _fastest(measured: Sequence[Measurement]) -> Measurement:
    best = min(measured, key=lambda m: m.p99_ms)
    as_fast = [m for m in measured if _is_as_fast(m, best)]
    share = min(m.cpu_share for m in as_fast)
    return next(m for m in as_fast if m.cpu_share <= max(share * _SAME_RELATIVE, share + _SAME_SHARE))


def _is_as_fast(measured: Measurement, best: Measurement) -> bool:
    if measured.p99_ms <= max(best.p99_ms * _SAME_RELATIVE, best.p99_ms + _SAME_MS):
        return True
    return measured.p50_ms <= best.p50_ms * _SAME_P50 and measured.p99_ms <= best.p99_ms * _ACCIDENT


def _praise(chosen: Measurement, measured: Sequence[Measurement], limits: Limits) -> str:
    kept = f"{limits.budget_ms:g} ms" + (
        "" if limits.cpu_share is None else f" and a CPU share of {limits.cpu_share:g}"
    )
    others = {m.candidate.variant for m in measured} - {chosen.candidate.variant}
    if others:
        return f"the highest quality of those that keep {kept}"
    return f"the fastest that keeps {kept}, with the least CPU where others are as fast"


def _count(measured: Sequence[Measurement]) -> str:
    return f"{len(measured)} that were tried" if len(measured) > 1 else "the one that was tried"
