"""Load a stream's models: the first one by measuring what this board can run, others beside the running loop.

`choose_start` is the start-up benchmark. A noisy start must not refuse a board that can, so the best of several runs
counts; and what is measured is less than a real frame costs: a picture of the input's own size in which nothing is
found. `Loader` opens another variant's stages in a thread while the loop goes on, which ONNX Runtime allows.
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
from edge_sdk.core.errors import EdgeError, LatencyGateError, NoRoomError, StoppedError, failure_line, is_out_of_memory
from edge_sdk.core.frame import Frame
from edge_sdk.core.logs import counted
from edge_sdk.core.threads import BackgroundTask
from edge_sdk.inference.stages import Stages
from edge_sdk.tuning.degradation import levels_of

_log = logging.getLogger(__name__)

LIMIT_S = 20.0
"""A board thirty times as slow as a busy workstation loads and proves YOLOv8n in that; a stream waits for it."""

_LONGEST_LOOK_S = 1.0  # between two looks: more is a process that was stopped, and no load hangs for that


class Loaded(msgspec.Struct, frozen=True):
    """The outcome of a request to load a model.

    Attributes:
        variant: which was asked for.
        stages: ready to run; None when it does not load.
        problem: why not, for people.
        is_for_now: whether it may load later, when memory is free.
    """

    variant: str
    stages: Stages | None
    problem: str = ""
    is_for_now: bool = False


class Loader:
    """Opens one variant at a time, each in a thread of its own.

    Args:
        open_stages: the name of a variant -> its stages, loaded and proved.
        prepare: what comes before it and ends by itself, as a trial does; its time does not count.
        limit_s: seconds after which a load is given up, and its thread left behind.
    """

    def __init__(
        self,
        open_stages: Callable[[str], Stages],
        prepare: Callable[[str], None] = lambda _variant: None,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._open_stages, self._prepare, self._limit_s = open_stages, prepare, limit_s
        self._task: BackgroundTask[Stages] | None = None
        self._freeing: BackgroundTask[None] | None = None
        self._loaded: Loaded | None = None
        self._variant = ""
        self._is_loading = False  # and no longer preparing
        self._looked_s = self._busy_s = 0.0

    def ask(self, variant: str) -> None:
        """Begin to open this variant; `take` has it later."""
        self._variant, self._is_loading, self._busy_s = variant, False, 0.0
        try:
            self._task = BackgroundTask(lambda: self._open(variant), "edge-loader", undo=lambda _stages: None)
        except RuntimeError as cause:  # there is no thread to be had now
            self._loaded = Loaded(variant, None, failure_line(cause), is_for_now=True)

    def take(self) -> Loaded | None:
        """Return what was asked for once it is done, and None before; to be asked after every frame."""
        task = self._task
        if task is None:
            loaded, self._loaded = self._loaded, None
            return loaded
        if not task.is_done and not self._takes_too_long():
            return None
        self._task = None
        if not task.is_done:
            task.close(0.0)  # whatever it may still come to
            return Loaded(self._variant, None, f"its model was not loaded after {self._limit_s:g} s and is given up")
        try:
            return Loaded(self._variant, task.take())
        except StoppedError:
            return None  # nothing is wrong, and nobody takes a model any more
        except Exception as cause:  # noqa: BLE001 - the stream goes on with what it has
            is_for_now = isinstance(cause, NoRoomError) or is_out_of_memory(cause)
            return Loaded(self._variant, None, failure_line(cause), is_for_now=is_for_now)

    def give_up(self, stages: list[Stages]) -> None:
        """Give back what these hold, before anything else is opened, and not in this thread: it takes milliseconds.

        Args:
            stages: emptied; who calls must keep none of them.
        """
        try:
            self._freeing = BackgroundTask(stages.clear, "edge-loader")
        except RuntimeError:
            stages.clear()

    def _open(self, variant: str) -> Stages:
        if self._freeing is not None:
            self._freeing.take()
        self._prepare(variant)
        if self._variant == variant:
            self._is_loading = True
        return self._open_stages(variant)

    def _takes_too_long(self) -> bool:
        now_s = time.monotonic()
        if self._is_loading:
            self._busy_s += min(now_s - self._looked_s, _LONGEST_LOOK_S)
        self._looked_s = now_s
        return self._busy_s >= self._limit_s

    def close(self, timeout_s: float) -> None:
        """Wait for the thread, at most so many seconds; one that hangs is left behind."""
        if self._task is not None:
            self._task.close(timeout_s)


_RUNS = 7  # of which the best counts; golden has warmed the model up
_SURE = 0.5  # of the budget for the bare model: what stands around it takes less, and a start waits for each run
_ADVICE = 1.25  # of the median: room for the camera's wait and for peaks
_CHANCE = 1.1  # times the budget: the run that was measured may have been a slow one
_REACHABLE = 2.0  # times the budget: what lies further away fewer threads do not bring back

Open: TypeAlias = Callable[[str, int | None], Stages]
"""The name of a variant, and threads -> its stages, loaded and proved; None: with those that it has by choice."""


class VariantTime(msgspec.Struct, frozen=True):
    """What one variant takes on this board, in milliseconds.

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


class StartChoice(msgspec.Struct, frozen=True):
    """The variant with which a pipeline starts, and why.

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
    is_stopped: Callable[[], bool] = lambda: False,
) -> StartChoice:
    """Choose the best variant that this board can run inside the budget, or the fastest where there is none.

    Args:
        bundle: led by the variant that shall run by choice.
        stages: those of that variant, warm; emptied, so that one model is loaded at a time.
        budget_ms: capture to outbox.
        open_stages: loads another one, or the same with another number of threads.
        threads: numbers of threads that a variant may run with where its own miss the budget, ascending.
        fixed: no other variant may run.
        is_stopped: asked before every run.

    Raises:
        StoppedError: `is_stopped` said so.
    """
    slot = _Slot(stages.pop(), open_stages, budget_ms, is_stopped)
    too_slow: list[VariantTime] = []
    for name in dict.fromkeys(level.variant for level in levels_of(bundle.manifest, fixed=fixed)):
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
            return StartChoice(slot.take(), (*too_slow, *slow[:1]), fits=True)
        too_slow.append(min(slow, key=lambda t: t.least_ms))
    fastest = min(too_slow, key=lambda t: t.least_ms)
    return StartChoice(slot.take(fastest.variant, fastest.threads), tuple(too_slow), fits=False)


class _Slot:
    """Holds the one model that is loaded while a start measures."""

    def __init__(self, stages: Stages, open_stages: Open, budget_ms: float, is_stopped: Callable[[], bool]) -> None:
        self._stages: Stages | None = stages
        self._open, self._budget_ms, self._is_stopped = open_stages, budget_ms, is_stopped

    def hold(self, variant: str, threads: int | None = None) -> bool:
        """Load this one in place of the other; False where it does not load."""
        try:
            self._stages = self.take(variant, threads)
        except EdgeError as cause:
            on = f" on {counted(threads, 'thread')}" if threads else ""
            _log.info(f"{variant}{on} does not load here and is left out: {cause}")
            return False
        return True

    def time(self) -> VariantTime | None:
        """Measure the one that is here; None where it keeps the budget."""
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
    """List the numbers of threads that may bring a variant back into the budget, the most first."""
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


def budget_refusal(bundle: Bundle, start: StartChoice, budget_ms: float, *, fixed: bool) -> LatencyGateError:
    """Make the error that says, with the numbers, that the budget cannot be kept."""
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
