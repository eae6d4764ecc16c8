"""Choose the model with which a stream starts, by measuring what this board can run.

A noisy start must not refuse a board that can, so the best of several runs counts; and what is measured is less than a
real frame costs: a picture of the input's own size in which nothing is found.
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
_RUNS = 7  # of which the best counts; golden has warmed the model up
_SURE = 0.5  # of the budget for the bare model: what stands around it takes less, and a start waits for each run
_ADVICE = 1.25  # of the median: room for the camera's wait and for peaks
_CHANCE = 1.1  # times the budget: the run that was measured may have been a slow one
_REACHABLE = 2.0  # times the budget: what lies further away fewer threads do not bring back

Open: TypeAlias = Callable[[str, int | None], Stages]
"""The name of a variant, and threads -> its stages, loaded and proved; None: with those that it has by choice."""


class VariantTime(msgspec.Struct, frozen=True):
    """What one variant takes on this board, on so many threads; `parts_ms` are prepare, run and decode of the best."""

    variant: str
    threads: int
    median_ms: float
    parts_ms: tuple[float, float, float]

    @property
    def least_ms(self) -> float:
        """Prepare, run and decode of the best run together."""
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
        stages: loaded and proved.
        too_slow: the variants that were found to be beyond the budget, in the order of the levels; the last may be
            that of `stages`, on another number of threads.
        fits: whether `stages` can keep it; otherwise they are the fastest there are.
    """

    stages: Stages
    too_slow: tuple[VariantTime, ...]
    fits: bool

    def reason(self, budget_ms: float) -> str:
        """Say why it is this variant, for people."""
        return f"the budget is {budget_ms:g} ms, and {', '.join(map(str, self.too_slow))}" if self.too_slow else "start"


def time_stages(stages: Stages, budget_ms: float, is_stopped: Callable[[], bool] = lambda: False) -> VariantTime | None:
    """Measure one variant, which is warm; None as soon as one run is within the budget, or golden says so already.

    Raises:
        StoppedError: `is_stopped`, asked before every run, said so.
    """
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
    """Choose the best variant that this board can run inside the budget, or the fastest where there is none.

    Args:
        bundle: led by the variant that shall run by choice.
        loaded: the stages of that variant, warm; emptied, so that one model is loaded at a time.
        budget_ms: capture to outbox.
        open_stages: loads another one, or the same with another number of threads.
        threads: numbers of threads that a variant may run with where its own miss the budget, ascending.
        fixed: no other variant may run.
        is_stopped: asked before every run.

    Raises:
        StoppedError: `is_stopped` said so.
    """

    def hold(variant: str, count: int | None = None) -> None:
        """Load this one in place of the other, where it is another."""
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
    """List the numbers of threads that may bring a variant back into the budget, the most first."""
    prepare_ms, run_ms, decode_ms = taken.parts_ms
    worth = []
    for count in sorted(threads, reverse=True):
        if count > taken.threads:  # more cannot do better than share the work evenly
            may_keep = prepare_ms + run_ms * taken.threads / count + decode_ms <= budget_ms * _CHANCE
        else:  # fewer save the waiting for each other
            may_keep = taken.threads > max(threads) or taken.least_ms <= budget_ms * _REACHABLE
        if count != taken.threads and may_keep:
            worth.append(count)
    return worth


def budget_refusal(bundle: Bundle, start: StartChoice, budget_ms: float, *, fixed: bool) -> LatencyGateError:
    """Make the error that says, with the numbers, that the budget cannot be kept."""
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
