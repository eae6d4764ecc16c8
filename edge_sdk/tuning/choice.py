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
    of those that are as good within noise the fastest, of those that are as fast the one that takes the least CPU, of
    those the one with the higher figure, or the first. Where none
    has that to spare, the same of those that just meet the budget; where none meets both, the least CPU share that
    meets the budget; where none meets the budget, the least p99.

    Args:
        measured: one or more, in the order of measuring.
        limits: what has to be kept.
    """
    good = _good(measured, limits)
    if good:
        best = good[0]
        chosen = _fastest([m for m in good if m.rating.is_as_good_as(best.rating)])
        return chosen, _praise(chosen, best, measured, limits)
    in_time = [m for m in measured if limits.keeps_budget(m)]
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


def is_within_noise(one: Measurement, measured: Sequence[Measurement], limits: Limits) -> bool:
    """Whether its figure of quality is lower than the best that may run, and its quality is not, as far as one knows.

    Args:
        one: of `measured`.
        measured: all of them.
        limits: what has to be kept.
    """
    good = _good(measured, limits)
    return bool(good) and one.rating.rank < good[0].rating.rank and one.rating.is_as_good_as(good[0].rating)


def _good(measured: Sequence[Measurement], limits: Limits) -> list[Measurement]:
    """Those that keep the limits, if possible with something to spare; the highest figure first."""
    in_time = [m for m in measured if limits.keeps_budget(m)]
    good = [m for m in in_time if limits.is_safe(m)] or [m for m in in_time if limits.keeps_cpu(m)]
    return sorted(good, key=lambda m: -m.rating.rank)


def _fastest(measured: Sequence[Measurement]) -> Measurement:
    best = min(measured, key=lambda m: m.p99_ms)
    as_fast = [m for m in measured if _is_as_fast(m, best)]
    share = min(m.cpu_share for m in as_fast)
    return next(m for m in as_fast if m.cpu_share <= max(share * _SAME_RELATIVE, share + _SAME_SHARE))


def _is_as_fast(measured: Measurement, best: Measurement) -> bool:
    if measured.p99_ms <= max(best.p99_ms * _SAME_RELATIVE, best.p99_ms + _SAME_MS):
        return True
    return measured.p50_ms <= best.p50_ms * _SAME_P50 and measured.p99_ms <= best.p99_ms * _ACCIDENT


def _praise(chosen: Measurement, best: Measurement, measured: Sequence[Measurement], limits: Limits) -> str:
    kept = f"{limits.budget_ms:g} ms" + (
        "" if limits.cpu_share is None else f" and a CPU share of {limits.cpu_share:g}"
    )
    if chosen.rating.rank < best.rating.rank:
        return f"as good as {best.candidate.variant} within noise, and the fastest of these that keeps {kept}"
    others = {m.candidate.variant for m in measured} - {chosen.candidate.variant}
    if others:
        return f"the highest quality of those that keep {kept}"
    return f"the fastest that keeps {kept}, with the least CPU where others are as fast"


def _count(measured: Sequence[Measurement]) -> str:
    return f"{len(measured)} that were tried" if len(measured) > 1 else "the one that was tried"
