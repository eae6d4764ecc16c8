"""The loop: one frame from the camera to the outbox, inside its budget.

    source.latest -> budget.admits -> stages (-> then) -> sink.put -> observers

The loop has no thread and no I/O of its own; it blocks only in the wait for a frame, and nothing grows. `Budget`
decides whether a frame may still make its deadline, `Tick` says what one step came to, and `RunRecord` keeps ages and
inference times in buffers of fixed size.
"""

from __future__ import annotations

import enum
import math
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from edge_sdk.core.clock import Percentiles, percentiles_of
from edge_sdk.core.errors import CameraError, HungRunError
from edge_sdk.core.frame import Frame, Result
from edge_sdk.core.protocols import Sink, Source, Stage

if TYPE_CHECKING:
    from edge_sdk.inference.cascade import Cascade

_WINDOW = 64  # recent steps that the estimate uses: about two seconds of a camera
_PROBE_INTERVAL_NS = 1_000_000_000  # one late frame a second always runs, to notice the end of a slow spell


class Budget:
    """Latency budget of one camera, in monotonic nanoseconds; every call brings the time.

    A frame is dropped when its age plus the 90th percentile of recent prepare + run + decode durations exceeds the
    budget; one probe a second always runs, and one that was fast enough ends the spell.

    `latency_ms` is from capture to outbox. Without `drops`, as for image files, late frames run too.
    """

    def __init__(self, latency_ms: float, *, drops: bool = True) -> None:
        self._drops = drops
        self.limit_ns = int(latency_ms * 1e6)
        self._recent: deque[int] = deque(maxlen=_WINDOW)
        self._sorted: list[int] = []
        self._last_run_ns: int | None = None
        self._probe_age_ns: int | None = None

    def expected_ns(self) -> int:
        """Return the 90th percentile of recent durations in nanoseconds; 0 before the first."""
        count = len(self._sorted)
        return self._sorted[min(count - 1, count * 9 // 10)] if count else 0

    def admits(self, captured_ns: int, now_ns: int) -> bool:
        """Return whether to run a frame captured at `captured_ns` at `now_ns`; True once a second whatever its age."""
        # A driver's clock may put a frame into the future, which gives it no extra time.
        age_ns = max(0, now_ns - captured_ns)
        makes_it = not self._drops or age_ns + self.expected_ns() <= self.limit_ns
        is_probe_due = self._last_run_ns is None or now_ns - self._last_run_ns >= _PROBE_INTERVAL_NS
        if not (makes_it or is_probe_due):
            return False
        self._last_run_ns = now_ns
        self._probe_age_ns = None if makes_it else age_ns
        return True

    def record(self, duration_ns: int) -> None:
        """Record the duration of prepare + run + decode of the frame that was admitted last."""
        if self._probe_age_ns is not None and self._probe_age_ns + duration_ns <= self.limit_ns:
            # Otherwise durations of the slow spell would stay in the window for a minute, at one probe a second.
            self.forget()
        if len(self._recent) == _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(duration_ns)
        insort(self._sorted, duration_ns)

    def forget(self) -> None:
        """Drop all durations, because another model or another load runs from now on."""
        self._recent.clear()
        self._sorted.clear()

    def deadline_ns(self, captured_ns: int, now_ns: int) -> float:
        """Return until when what can be left out may still begin; infinity without `drops`."""
        return min(captured_ns, now_ns) + self.limit_ns if self._drops else math.inf

    def is_late(self, captured_ns: int, now_ns: int) -> bool:
        """Return whether a result delivered at `now_ns` missed its deadline."""
        return now_ns - captured_ns > self.limit_ns


_STEP_TIMEOUT_S = 0.2  # longest delay of `stop` while no frame comes


class Tick(enum.Enum):
    """The outcome of one step of the loop."""

    IDLE = "no frame came"
    STALE = "a frame was too old to make its deadline and was dropped"
    SKIPPED = "a frame was left out on purpose: only every n-th runs"
    ON_TIME = "a result was delivered inside the budget"
    LATE = "a result was delivered, but late"
    HUNG = "a run came to no end and was ended; there is no result"


class LoopObserver(Protocol):
    """Observes the outcome of each step, and may replace the loop's stages."""

    def after(self, loop: Loop, tick: Tick) -> None:
        """Handle one step; the loop's thread calls this after every step, and it must not block or raise."""


class Loop:
    """Takes the freshest frame, runs it and delivers the result: by `step()`, `run()`, or `for result in loop`.

    Args:
        stages: turns a frame into a result; may be replaced between two steps.
        sink: takes results; the budget ends when its `put` returns. None where results are only iterated over.
        observers: further sinks, called after the deadline was judged; slow ones cost frames.
        then: a second model, which runs on the objects of a result while the frame has time left.
        clock_ns: returns monotonic nanoseconds; replaced in tests.

    Attributes:
        class_ids: the classes that count, all others are left out of results; None: all count.
        every: the loop runs at most every `every`-th frame of the source, 1 or more; 1.5 is two frames in three.
        least_gap_ns: least average time between two frames that run, nanoseconds; 0 without a limit.
        last_wait_ns: age of the last frame when the loop took it.
        last_delay_ns: part of `last_wait_ns` before the frame was available; dropping frames does not reduce it.
        last_age_ns: time from capture to outbox of the last result.
        last_hang: message of the last run that hung; empty when there was none.
        last_serial_ns: part of `last_age_ns` for prepare, run, decode and outbox.
        last_run_ns: part of `last_serial_ns` for the bare run.
        last_then_ns: part of `last_serial_ns` for the second model, which takes what is left of the budget.
    """

    def __init__(
        self,
        source: Source,
        stages: Stage[Frame, Result],
        sink: Sink | None,
        budget: Budget,
        *,
        observers: Sequence[Sink] = (),
        then: Cascade | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._source, self._stages, self._then = source, stages, then
        self._sink, self._budget, self._observers, self._clock_ns = sink, budget, tuple(observers), clock_ns
        self.counts: dict[Tick, int] = dict.fromkeys(Tick, 0)
        self.class_ids: frozenset[int] | None = None
        self.every = 1.0
        self.least_gap_ns = self._due_ns = 0
        self.last_wait_ns = self.last_delay_ns = self.last_age_ns = self.last_serial_ns = self.last_run_ns = 0
        self.last_then_ns = 0
        self.last_hang = ""
        self._last_seq: int | None = None
        self._behind = 0.0  # of the last frame, behind where `every` has it: below 1
        self._is_stopped = False

    @property
    def stages(self) -> Stage[Frame, Result]:
        """The stages of the next step; setting other stages drops the recorded durations."""
        return self._stages

    @stages.setter
    def stages(self, stages: Stage[Frame, Result]) -> None:
        self._stages = stages
        self._budget.forget()

    def step(self, timeout_s: float = 0.2) -> Tick:
        """Wait at most `timeout_s` seconds for a frame and bring it to the outbox.

        An error of a stage or the source is raised; the loop may be stepped, iterated over or run again.
        """
        return self._step(timeout_s)[0]

    def __iter__(self) -> Iterator[Result]:
        """Step until the source ends or `stop` is called, and yield each result once it is delivered.

        What is done with it does not count against the budget of this frame. The picture in `result.frame` is the
        source's, which may overwrite it with the next one: copy it to keep it; all other arrays are the result's own.
        """
        while not self._is_stopped:
            result = self._step(_STEP_TIMEOUT_S)[1]
            if result is not None:
                yield result
            if self._source.ended:
                return

    def run(self) -> None:
        """Step until the source ends, which a camera never does, or `stop` was called."""
        for _ in self:
            pass

    def stop(self) -> None:
        """Make `run` or the iteration end after this step; may be called from any thread or a signal handler."""
        self._is_stopped = True

    def _step(self, timeout_s: float) -> tuple[Tick, Result | None]:
        frame = self._source.latest(timeout_s)
        outcome = (Tick.IDLE, None) if frame is None else self._process(frame)
        self.counts[outcome[0]] += 1
        return outcome

    def _is_too_soon(self, frame: Frame) -> bool:
        return frame.captured_ns < self._due_ns <= frame.captured_ns + self.least_gap_ns

    def _process(self, frame: Frame) -> tuple[Tick, Result | None]:
        if not isinstance(frame, Frame):  # a user may write the source
            raise CameraError(
                f"the source's latest() gave {type(frame).__name__}, expected None or a Frame; "
                "Frame.of(image) makes one of a picture"
            )
        step = 0 if self._last_seq is None else frame.seq - self._last_seq
        wanted = self.every - self._behind
        if 0 < step < wanted or self._is_too_soon(frame):
            return Tick.SKIPPED, None
        started_ns = self._clock_ns()
        self.last_wait_ns, self.last_delay_ns = started_ns - frame.captured_ns, frame.delay_ns
        if not self._budget.admits(frame.captured_ns + frame.delay_ns, started_ns):
            return Tick.STALE, None
        self._last_seq = frame.seq
        self._behind = step - wanted if wanted <= step < wanted + 1 else 0.0
        if self.least_gap_ns:
            is_in_step = 0 <= frame.captured_ns - self._due_ns < self.least_gap_ns
            self._due_ns = (self._due_ns if is_in_step else frame.captured_ns) + self.least_gap_ns
        try:
            result = self._stages(frame)
        except HungRunError as cause:
            self.last_hang = str(cause)
            return Tick.HUNG, None
        if self.class_ids is not None:
            result = result.of_classes(self.class_ids)
        decoded_ns = self._clock_ns()
        self._budget.record(decoded_ns - started_ns)
        if self._then is not None:
            result = self._then(result, self._budget.deadline_ns(frame.captured_ns + frame.delay_ns, started_ns))
            self.last_then_ns = self._clock_ns() - decoded_ns
        if self._sink is not None:
            self._sink.put(result)
        delivered_ns = self._clock_ns()
        self.last_age_ns, self.last_serial_ns = delivered_ns - frame.captured_ns, delivered_ns - started_ns
        self.last_run_ns = result.inference_ns
        for observer in self._observers:
            observer.put(result)
        return (Tick.LATE if self._budget.is_late(frame.captured_ns, delivered_ns) else Tick.ON_TIME), result


_RECENT = 4096  # results from which the percentiles are computed


class RunRecord:
    """An observer and sink that records ages and inference times of recent results.

    Attributes:
        not_finite: number of results with NaN or infinity among the model's outputs.
    """

    def __init__(self) -> None:
        self.results = self.not_finite = 0
        self._recent_ns = {what: np.zeros(_RECENT, np.int64) for what in ("age", "serial", "inference")}
        self._first_ns = self._last_ns = 0

    def put(self, result: Result) -> None:
        """Count a result with NaN or infinity, which the loop does not check."""
        if not result.is_finite:
            self.not_finite += 1

    def after(self, loop: Loop, tick: Tick) -> None:
        """Record the times of one step; see `LoopObserver`."""
        if tick is not Tick.ON_TIME and tick is not Tick.LATE:
            return
        slot, recent_ns = self.results % _RECENT, self._recent_ns
        recent_ns["age"][slot], recent_ns["serial"][slot] = loop.last_age_ns, loop.last_serial_ns
        recent_ns["inference"][slot] = loop.last_run_ns
        self._last_ns = time.monotonic_ns()
        self._first_ns = self._first_ns or self._last_ns
        self.results += 1

    def percentiles(self, what: Literal["age", "serial", "inference"]) -> Percentiles | None:
        """Return those from capture to outbox, of that without waiting for the loop, or of the bare run."""
        return percentiles_of(self._recent_ns[what][: min(self.results, _RECENT)])

    def fps(self) -> float:
        """Return results per second, from the first to the last."""
        span_s = (self._last_ns - self._first_ns) / 1e9
        return (self.results - 1) / span_s if self.results > 1 and span_s > 0 else 0.0

    def line(self, loop: Loop) -> str:
        """Return a line for people about the run so far."""
        age, inference = self.percentiles("age"), self.percentiles("inference")
        if age is None or inference is None:
            return "no frame yet"
        return (
            f"{self.results} results, {self.fps():.1f} a second; age p50 {age.p50_ms:.1f} p99 {age.p99_ms:.1f} ms, "
            f"inference p50 {inference.p50_ms:.1f} ms; {loop.counts[Tick.LATE]} late, {loop.counts[Tick.STALE]} too old"
            + (f", {loop.counts[Tick.SKIPPED]} left out" if loop.counts[Tick.SKIPPED] else "")
        )
