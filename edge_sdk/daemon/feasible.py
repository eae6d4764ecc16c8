"""Feasible: can this board keep the budget at all?

Owns the measuring at the start and the words for it. A noisy start must not refuse a board that can, so the best of
several runs is what counts; and what is measured is less than a real frame costs: a picture of the input's own size in
which nothing is found.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np

from edge_sdk.bundle import Bundle
from edge_sdk.errors import EdgeError, LatencyGateError, StoppedError
from edge_sdk.frame import Frame
from edge_sdk.ladder import ladder_of
from edge_sdk.stages import Stages

_RUNS = 7  # of which the best counts; golden has warmed the model up
_SURE = 0.5  # of the budget for the bare model: what stands around it takes less, and a start waits for each run
_ADVICE = 1.25  # of the median: room for the camera's wait and for peaks


class VariantTime(msgspec.Struct, frozen=True):
    """What one variant takes here, in milliseconds.

    Attributes:
        variant: its name.
        least_ms: prepare, run and decode of the best run.
        median_ms: of all runs.
        parts_ms: prepare, run and decode of the best run, each.
    """

    variant: str
    least_ms: float
    median_ms: float
    parts_ms: tuple[float, float, float]

    def __str__(self) -> str:
        prepare, run, decode = self.parts_ms
        return (
            f"{self.variant} takes {self.least_ms:.3g} ms (prepare {prepare:.2g}, run {run:.3g}, decode {decode:.2g}; "
            f"the best of {_RUNS}, median {self.median_ms:.3g})"
        )


class Start(msgspec.Struct, frozen=True):
    """With what a stream starts.

    Attributes:
        stages: loaded and proved.
        too_slow: the variants that were found to be beyond the budget, in the order of the ladder.
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
    return VariantTime(stages.variant, sum(best), median(map(sum, runs)), best)


def choose_start(
    bundle: Bundle,
    stages: list[Stages],
    budget_ms: float,
    open_stages: Callable[[str], Stages],
    *,
    fixed: bool,
    say: Callable[[str], None],
    is_stopped: Callable[[], bool] = lambda: False,
) -> Start:
    """Take the best variant that this board can run inside the budget, or the fastest where there is none.

    Args:
        bundle: led by the variant that shall run by choice.
        stages: those of that variant, warm; emptied, so that one model is loaded at a time.
        budget_ms: capture to outbox.
        open_stages: the name of a variant -> its stages.
        fixed: no other variant may run.
        say: takes one line for people.
        is_stopped: asked before every run.

    Raises:
        StoppedError: `is_stopped` said so.
    """
    here: Stages | None = stages.pop()
    too_slow: list[VariantTime] = []
    for name in dict.fromkeys(rung.variant for rung in ladder_of(bundle.manifest, fixed=fixed)):
        if here is None or name != here.variant:
            here = None  # before the next one is loaded
            try:
                here = open_stages(name)
            except EdgeError as cause:
                say(f"{name} does not load here and is left out: {cause}")
                continue
        taken = time_stages(here, budget_ms, is_stopped)
        if taken is None:
            return Start(here, tuple(too_slow), fits=True)
        too_slow.append(taken)
    fastest = min(too_slow, key=lambda t: t.least_ms).variant
    if here is None or here.variant != fastest:
        here = None
        here = open_stages(fastest)
    return Start(here, tuple(too_slow), fits=False)


def refusal(bundle: Bundle, start: Start, budget_ms: float, *, fixed: bool) -> LatencyGateError:
    """What to say of a budget that cannot be kept, with the numbers."""
    fastest = min(start.too_slow, key=lambda t: t.least_ms)
    which = "its fastest model, " if len(start.too_slow) > 1 else ""
    rest = "".join(f"; {other.variant} takes {other.least_ms:.3g} ms" for other in start.too_slow if other != fastest)
    has_choice = fixed and len(bundle.manifest.variants) > 1
    smaller = "choose another --variant" if has_choice else "build a smaller model (--sizes)"
    return LatencyGateError(
        f"{bundle.path}: this board cannot keep {budget_ms:g} ms from capture to outbox: {which}{fastest}{rest}; "
        f"give --latency-ms {math.ceil(fastest.median_ms * _ADVICE)} or more, {smaller}, let `edge-sdk tune` look "
        "for better settings, or take what comes with --best-effort"
    )
