"""Choose the model with which a pipeline starts, by measuring what this board can run.

A noisy start must not refuse a board that is fast enough. The best of several runs therefore counts, and the measured
picture costs less than a real frame: it has the size of the model's input and shows no objects.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import TypeAlias

import msgspec
import numpy as np

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import EdgeError, LatencyGateError, StoppedError
from edge_sdk.core.frame import Frame
from edge_sdk.core.logs import counted
from edge_sdk.inference.stages import Stages
from edge_sdk.tuning.degradation import levels_of

_log = logging.getLogger(__name__)
_RUNS = 7  # runs of which the fastest counts; the golden inputs have warmed the model up
_SURE = 0.5  # share of the budget; a bare model below it needs no measurement, because the other stages take less
_ADVICE = 1.25  # times the median: room for the camera's wait and for peaks
_CHANCE = 1.1  # times the budget: the measured run may have been a slow one
_REACHABLE = 2.0  # times the budget: a slower variant cannot keep it with another number of threads

Open: TypeAlias = Callable[[str, int | None], Stages]
"""Takes a variant's name and a number of threads (None: the default); returns its stages, loaded and proved."""


class VariantTime(msgspec.Struct, frozen=True):
    """The measured time of one variant; `parts_ms` are prepare, run and decode of the fastest run."""

    variant: str
    threads: int
    median_ms: float
    parts_ms: tuple[float, float, float]

    @property
    def least_ms(self) -> float:
        """Milliseconds of prepare, run and decode together in the fastest run."""
        return sum(self.parts_ms)

    def __str__(self) -> str:
        prepare, run, decode = self.parts_ms
        return (
            f"{self.variant} takes {self.least_ms:.3g} ms on {counted(self.threads, 'thread')} (prepare {prepare:.2g}, "
            f"run {run:.3g}, decode {decode:.2g}; the best of {_RUNS}, median {self.median_ms:.3g})"
        )


class StartChoice(msgspec.Struct, frozen=True):
    """The stages with which a pipeline starts, and why.

    Attributes:
        too_slow: the variants that miss the budget, in the order of the levels; the last may be the one of `stages`, on
            another number of threads.
        fits: whether `stages` can keep the budget; otherwise they are the fastest.
    """

    stages: Stages
    too_slow: tuple[VariantTime, ...]
    fits: bool

    def reason(self, budget_ms: float) -> str:
        """Return for people why this variant was chosen."""
        return f"the budget is {budget_ms:g} ms, and {', '.join(map(str, self.too_slow))}" if self.too_slow else "start"


def time_stages(stages: Stages, budget_ms: float, is_stopped: Callable[[], bool] = lambda: False) -> VariantTime | None:
    """Measure one warm variant; return None as soon as one run, or its golden run, is within the budget."""
    if 0 < stages.session.replay_ns <= _SURE * budget_ms * 1e6:
        return None
    width, height = stages.prepare.spec.size_wh
    frame = Frame(np.zeros((height, width, 3), np.uint8), time.monotonic_ns(), time.time(), 0, "start")
    runs: list[tuple[float, float, float]] = []
    for _ in range(_RUNS):
        if is_stopped():
            raise StoppedError
        clock = [time.perf_counter_ns()]
        prepared = stages.prepare(frame)
        clock.append(time.perf_counter_ns())
        inferred = stages.session(prepared)
        clock.append(time.perf_counter_ns())
        stages.task(inferred)
        clock.append(time.perf_counter_ns())
        if clock[-1] - clock[0] <= budget_ms * 1e6:
            return None
        first, second, third = ((b - a) / 1e6 for a, b in pairwise(clock))
        runs.append((first, second, third))
    return VariantTime(stages.variant, stages.threads, median(map(sum, runs)), min(runs, key=sum))


def choose_start(
    bundle: Bundle,
    loaded: list[Stages],
    budget_ms: float,
    open_stages: Open,
    *,
    threads: Sequence[int] = (),
    fixed: bool,
    is_stopped: Callable[[], bool] = lambda: False,
) -> StartChoice:
    """Choose the best variant that this board can run inside the budget, or else the fastest.

    Args:
        bundle: the bundle, with the preferred variant first.
        loaded: list with the warm stages of that variant; it is emptied, so that one model is loaded at a time.
        budget_ms: latency budget from capture to outbox, milliseconds.
        open_stages: loads another variant, or the same one with another number of threads.
        threads: numbers of threads to try where a variant misses the budget with its own, ascending.
        fixed: whether no other variant may run.
        is_stopped: called before every run; StoppedError is raised where it returns True.
    """

    def hold(variant: str, count: int | None = None) -> None:
        """Load a variant in place of the loaded one, unless it is loaded already."""
        if not (loaded and loaded[0].variant == variant and count in (None, loaded[0].threads)):
            loaded.clear()
            loaded.append(open_stages(variant, count))

    def time_on(variant: str, count: int | None = None) -> VariantTime | None:
        hold(variant, count)
        return time_stages(loaded[0], budget_ms, is_stopped)

    too_slow: list[VariantTime] = []
    for variant in dict.fromkeys(level.variant for level in levels_of(bundle.manifest, fixed=fixed)):
        slow: list[VariantTime] = []
        counts: list[int | None] = [None]
        while counts:
            count = counts.pop(0)
            try:
                taken = time_on(variant, count)
            except EdgeError as cause:
                on = f" on {counted(count, 'thread')}" if count else ""
                _log.info(f"{variant}{on} does not load here and is left out: {cause}")
                continue
            if taken is None:
                return StartChoice(loaded.pop(), (*too_slow, *slow[:1]), fits=True)
            if not slow:
                counts += _worth_trying(taken, threads, budget_ms)
            slow.append(taken)
        if slow:
            too_slow.append(min(slow, key=lambda t: t.least_ms))
    fastest = min(too_slow, key=lambda t: t.least_ms)
    hold(fastest.variant, fastest.threads)
    return StartChoice(loaded.pop(), tuple(too_slow), fits=False)


def _worth_trying(taken: VariantTime, threads: Sequence[int], budget_ms: float) -> list[int]:
    """Return the numbers of threads that may bring a variant into the budget, the most first."""
    prepare_ms, run_ms, decode_ms = taken.parts_ms
    worth = []
    for count in sorted(threads, reverse=True):
        if count > taken.threads:  # at best, more threads share the work evenly
            may_keep = prepare_ms + run_ms * taken.threads / count + decode_ms <= budget_ms * _CHANCE
        else:  # fewer threads wait less for each other
            may_keep = taken.threads > max(threads) or taken.least_ms <= budget_ms * _REACHABLE
        if count != taken.threads and may_keep:
            worth.append(count)
    return worth


def budget_refusal(bundle: Bundle, start: StartChoice, budget_ms: float, *, fixed: bool) -> LatencyGateError:
    """Return the error that says, with the numbers, that the budget cannot be kept."""
    fastest = min(start.too_slow, key=lambda t: t.least_ms)
    which = "its fastest model, " if len(start.too_slow) > 1 else ""
    rest = "".join(
        f"; {other.variant} takes {other.least_ms:.3g} ms on {counted(other.threads, 'thread')}"
        for other in start.too_slow
        if other != fastest
    )
    has_choice = fixed and len(bundle.manifest.variants) > 1
    smaller = "choose another --variant" if has_choice else "build a smaller model (--sizes)"
    return LatencyGateError(
        f"{bundle.path}: this board cannot keep {budget_ms:g} ms from capture to outbox: {which}{fastest}{rest}; "
        f"give --latency-ms well above {math.ceil(fastest.median_ms * _ADVICE)} (frames that come at a camera's pace "
        f"take longer; `edge-sdk tune` measures it and looks for better settings), {smaller}, or take what comes with "
        "--best-effort"
    )
