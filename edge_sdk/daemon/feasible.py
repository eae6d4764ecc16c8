"""Feasible: can this board keep the budget at all?

Owns the measuring at the start and the words for it. A noisy start must not refuse a board that can, so the best of
several runs is what counts; and what is measured is less than a real frame costs: a picture of the input's own size in
which nothing is found.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import TypeAlias

import msgspec
import numpy as np

from edge_sdk.bundle import Bundle
from edge_sdk.daemon.say import counted
from edge_sdk.errors import EdgeError, LatencyGateError, StoppedError
from edge_sdk.frame import Frame
from edge_sdk.ladder import ladder_of
from edge_sdk.stages import Stages

_RUNS = 7  # of which the best counts; golden has warmed the model up
_SURE = 0.5  # of the budget for the bare model: what stands around it takes less, and a start waits for each run
_ADVICE = 1.25  # of the median: room for the camera's wait and for peaks
_CHANCE = 1.1  # times the budget: the run that was measured may have been a slow one
_REACHABLE = 2.0  # times the budget: what lies further away fewer threads do not bring back

Open: TypeAlias = Callable[[str, int | None], Stages]
"""The name of a variant, and threads -> its stages, loaded and proved; None: with those that it has by choice."""


class VariantTime(msgspec.Struct, frozen=True):
    """What one variant takes here, in milliseconds.

    Attributes:
        variant: its name.
        threads: inside one operator.
        least_ms: prepare, run and decode of the best run.
        median_ms: of all runs.
        parts_ms: prepare, run and decode of the best run, each.
    """

    variant: str
    threads: int
    least_ms: float
    median_ms: float
    parts_ms: tuple[float, float, float]

    def __str__(self) -> str:
        prepare, run, decode = self.parts_ms
        return (
            f"{self.variant} takes {self.least_ms:.3g} ms on {counted(self.threads, 'thread')} (prepare {prepare:.2g}, "
            f"run {run:.3g}, decode {decode:.2g}; the best of {_RUNS}, median {self.median_ms:.3g})"
        )


class Start(msgspec.Struct, frozen=True):
    """With what a stream starts.

    Attributes:
        stages: loaded and proved.
        too_slow: the variants that were found to be beyond the budget, in the order of the ladder; the last may be
            that of `stages`, on another number of threads.
        fits: whether `stages` can keep it; otherwise they are the fastest there are.
    """

    stages: Stages
    too_slow: tuple[VariantTime, ...]
    fits: bool

    def reason(self, budget_ms: float) -> str:
        """Why it is this variant, for people."""
        return f"the budget is {budget_ms:g} ms, and {', '.join(map(str, self.too_slow))}" if self.too_slow else "start"


def time_stages(stages: Stages, budget_ms: float, is_stopped: Callable[[], bool] = lambda: False) -> VariantTime | None:
    """Measure one variant; None as soon as one run is within the budget, or where golden says so already.

    Args:
        stages: warm.
        budget_ms: capture to outbox.
        is_stopped: asked before every run.

    Raises:
        StoppedError: `is_stopped` said so.
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
    best = min(runs, key=sum)
    return VariantTime(stages.variant, stages.threads, sum(best), median(map(sum, runs)), best)


def choose_start(
    bundle: Bundle,
    stages: list[Stages],
    budget_ms: float,
    open_stages: Open,
    *,
    threads: Sequence[int] = (),
    fixed: bool,
    say: Callable[[str], None],
    is_stopped: Callable[[], bool] = lambda: False,
) -> Start:
    """Take the best variant that this board can run inside the budget, or the fastest where there is none.

    Args:
        bundle: led by the variant that shall run by choice.
        stages: those of that variant, warm; emptied, so that one model is loaded at a time.
        budget_ms: capture to outbox.
        open_stages: loads another one, or the same with another number of threads.
        threads: numbers of threads that a variant may run with where its own miss the budget, ascending.
        fixed: no other variant may run.
        say: takes one line for people.
        is_stopped: asked before every run.

    Raises:
        StoppedError: `is_stopped` said so.
    """
    slot = _Slot(stages.pop(), open_stages, budget_ms, say, is_stopped)
    too_slow: list[VariantTime] = []
    for name in dict.fromkeys(rung.variant for rung in ladder_of(bundle.manifest, fixed=fixed)):
        if not slot.hold(name):
            continue
        found = [slot.time()]
        for count in _worth_trying(found[0], threads, budget_ms):
            if slot.hold(name, count):
                found.append(slot.time())
            if found[-1] is None:
                break
        slow = [taken for taken in found if taken is not None]
        if found[-1] is None:
            return Start(slot.take(), (*too_slow, *slow[:1]), fits=True)
        too_slow.append(min(slow, key=lambda t: t.least_ms))
    fastest = min(too_slow, key=lambda t: t.least_ms)
    return Start(slot.take(fastest.variant, fastest.threads), tuple(too_slow), fits=False)


class _Slot:
    """Room for one model."""

    def __init__(
        self,
        stages: Stages,
        open_stages: Open,
        budget_ms: float,
        say: Callable[[str], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._stages: Stages | None = stages
        self._open, self._budget_ms, self._say, self._is_stopped = open_stages, budget_ms, say, is_stopped

    def hold(self, variant: str, threads: int | None = None) -> bool:
        """Whether this one is here now."""
        try:
            self._stages = self.take(variant, threads)
        except EdgeError as cause:
            on = f" on {counted(threads, 'thread')}" if threads else ""
            self._say(f"{variant}{on} does not load here and is left out: {cause}")
            return False
        return True

    def time(self) -> VariantTime | None:
        """What the one that is here takes; None where it keeps the budget."""
        return None if self._stages is None else time_stages(self._stages, self._budget_ms, self._is_stopped)

    def take(self, variant: str | None = None, threads: int | None = None) -> Stages:
        """Hand out the one that is here, or another one, for which it makes room."""
        stages, self._stages = self._stages, None
        if stages is not None and variant in (None, stages.variant) and threads in (None, stages.threads):
            return stages
        if variant is None:
            raise ValueError("expected a model to be here")
        del stages
        return self._open(variant, threads)


def _worth_trying(taken: VariantTime | None, threads: Sequence[int], budget_ms: float) -> list[int]:
    """Numbers of threads that may bring a variant back into the budget, the most first."""
    if taken is None:
        return []
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


def _brief(taken: VariantTime) -> str:
    return f"{taken.variant} takes {taken.least_ms:.3g} ms on {counted(taken.threads, 'thread')}"


def refusal(bundle: Bundle, start: Start, budget_ms: float, *, fixed: bool) -> LatencyGateError:
    """What to say of a budget that cannot be kept, with the numbers."""
    fastest = min(start.too_slow, key=lambda t: t.least_ms)
    which = "its fastest model, " if len(start.too_slow) > 1 else ""
    rest = "".join(f"; {_brief(other)}" for other in start.too_slow if other != fastest)
    has_choice = fixed and len(bundle.manifest.variants) > 1
    smaller = "choose another --variant" if has_choice else "build a smaller model (--sizes)"
    return LatencyGateError(
        f"{bundle.path}: this board cannot keep {budget_ms:g} ms from capture to outbox: {which}{fastest}{rest}; "
        f"give --latency-ms well above {math.ceil(fastest.median_ms * _ADVICE)} (frames that come at a camera's pace "
        f"take longer; `edge-sdk tune` measures it and looks for better settings), {smaller}, or take what comes with "
        "--best-effort"
    )
