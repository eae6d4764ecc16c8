"""Tuned: what tuning came to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edge_sdk.tuning.candidate import Candidate, Measurement
from edge_sdk.tuning.choice import Limits, choose, is_within_noise

_BUSY = 0.25  # of the processors' time: a core of four; a camera's own driver and a broker take less


class Tuned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was measured, and which of it runs.

    Attributes:
        limits: what had to be kept.
        fps: of the camera that it was measured on.
        metric: what `quality` is.
        providers: execution providers that the bundle promises and that started here.
        before: what the bundle promises by default; None where it could not be measured.
        chosen: what runs.
        reason: why.
        meets_budget, meets_cpu_share: whether `chosen` keeps the limits.
        measured: all of it, in that order.
        others: the share of the processors' time that other programs took meanwhile, 0-1; None where it is not known.
        untried: variants with a higher figure of quality than `chosen` for which there was no time, the best first.
        provisional: whether others took so much, or so little was tried, that it has to be measured again.
        seconds: how long it took.
    """

    limits: Limits
    fps: float
    metric: str
    providers: tuple[str, ...]
    before: Measurement | None
    chosen: Measurement
    reason: str
    meets_budget: bool
    meets_cpu_share: bool
    measured: tuple[Measurement, ...]
    seconds: float
    others: float | None = None
    untried: tuple[str, ...] = ()
    provisional: bool = False

    @classmethod
    def of(
        cls,
        measured: Sequence[Measurement],
        promise: Candidate,
        limits: Limits,
        *,
        metric: str,
        providers: Sequence[str],
        fps: float,
        seconds: float,
        others: float | None = None,
        untried: Sequence[str] = (),
    ) -> Tuned:
        """Choose from one or more measurements."""
        chosen, reason = choose(measured, limits)
        return cls(
            limits=limits,
            fps=fps,
            metric=metric,
            providers=tuple(providers),
            before=next((m for m in measured if m.candidate == promise), None),
            chosen=chosen,
            reason=reason,
            meets_budget=limits.keeps_budget(chosen),
            meets_cpu_share=limits.keeps_cpu(chosen),
            measured=tuple(measured),
            seconds=round(seconds, 1),
            others=None if others is None else round(others, 2),
            untried=tuple(untried),
            provisional=bool(untried) or (others is not None and others > _BUSY),
        )

    @property
    def p99_ms(self) -> float:
        """Of what runs: prepare + run + decode."""
        return self.chosen.p99_ms

    def for_variant(self, variant: str) -> Candidate:
        """How one of the bundle's models runs best: as it was measured, else with the settings of what was chosen."""
        if variant == self.chosen.candidate.variant:
            return self.chosen.candidate
        measured = [m for m in self.measured if m.candidate.variant == variant]
        if measured:
            return choose(measured, self.limits)[0].candidate
        return msgspec.structs.replace(self.chosen.candidate, variant=variant)

    def is_within_noise(self, one: Measurement) -> bool:
        """Whether one of `measured` is as good as the best that may run, although its figure is lower."""
        return is_within_noise(one, self.measured, self.limits)

    def doubt(self) -> str:
        """Why it has to be measured again, for people; empty where it has not."""
        doubts = []
        if self.untried:
            doubts.append(f"there was no time for {', '.join(self.untried)}")
        if self.others is not None and self.others > _BUSY:
            doubts.append(
                f"other programs took {100 * self.others:.0f} % of the processors' time while it was measured"
            )
        return " and ".join(doubts) if self.provisional else ""

    def line(self) -> str:
        """Before and after, for people."""
        after = f"{self.chosen.candidate} ({figures(self.chosen)})"
        if self.before is None or self.before.candidate == self.chosen.candidate:
            return f"{after} as promised; {self.reason}" if self.before else f"{after}; {self.reason}"
        return f"{after} instead of {self.before.candidate} ({figures(self.before)}); {self.reason}"


def figures(measured: Measurement) -> str:
    """A measurement in a few words."""
    return f"p99 {measured.p99_ms:.3g} ms, {100 * measured.cpu_share:.0f} % of a core"
