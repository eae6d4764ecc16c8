"""The loop: one frame from the camera to the outbox, inside its budget.

Owns the order of the stages and the counting; no thread, no clock, no I/O of its own. Nothing here blocks but the wait
for a frame, and nothing grows.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from edge_sdk.budget import Budget
from edge_sdk.errors import CameraError, HungRunError
from edge_sdk.frame import Frame, Result
from edge_sdk.protocols import Sink, Source, Stage

_STEP_TIMEOUT_S = 0.2  # how soon `stop` is seen while no frame comes


class Tick(enum.Enum):
    """What one step came to."""

    IDLE = "no frame came"
    STALE = "a frame was too old to make its deadline and was dropped"
    SKIPPED = "a frame was left out on purpose: only every n-th runs"
    ON_TIME = "a result was delivered inside the budget"
    LATE = "a result was delivered, but late"
    HUNG = "a run came to no end and was ended; there is no result"


class Supervisor(Protocol):
    """Looks at what the steps come to, and may give the loop other stages."""

    def after(self, loop: Loop, tick: Tick) -> None:
        """Called after every step, in the loop's thread: it never blocks and never raises."""
        ...


class Loop:
    """Take the freshest frame, run it, deliver the result; by steps, or to its end: `run()`, or `for result in loop`.

    Args:
        source: where frames come from.
        stages: Frame -> Result; another may take its place between two steps.
        sink: takes results; the budget ends when its `put` returns. None where they are only iterated over.
        budget: the deadline's arithmetic.
        observers: further sinks, served after the deadline was judged: they may be slow, and then cost frames.
        clock_ns: monotonic nanoseconds; injected by tests.

    Attributes:
        every: of the source's frames, by their numbers, at most every `every`-th runs, 1 and up; 1.5 are two of three.
        least_gap_ns: nanoseconds between two frames that run, on average, at least; 0 without a limit.
        counts: how many steps came to what.
        last_wait_ns: how old the last frame was when it was taken.
        last_delay_ns: of that what it waited before it was to be had: dropping frames does not help against it.
        last_age_ns: capture to outbox of the last result.
        last_hang: what was said of the last run that came to no end; empty when there was none.
        last_serial_ns: of it what the loop itself took: prepare, run, decode and outbox.
        last_run_ns: of that the bare run.
    """

    def __init__(
        self,
        source: Source,
        stages: Stage[Frame, Result],
        sink: Sink | None,
        budget: Budget,
        *,
        observers: Sequence[Sink] = (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._source, self._stages = source, stages
        self._sink, self._budget, self._observers, self._clock_ns = sink, budget, tuple(observers), clock_ns
        self.counts: dict[Tick, int] = dict.fromkeys(Tick, 0)
        self.every = 1.0
        self.least_gap_ns = self._due_ns = 0
        self.last_wait_ns = self.last_delay_ns = self.last_age_ns = self.last_serial_ns = self.last_run_ns = 0
        self.last_hang = ""
        self._last_seq: int | None = None
        self._behind = 0.0  # of the last frame, behind where `every` has it: below 1
        self._is_stopped = False

    @property
    def stages(self) -> Stage[Frame, Result]:
        """Those of the next step. Others begin without the durations of those before them."""
        return self._stages

    @stages.setter
    def stages(self, stages: Stage[Frame, Result]) -> None:
        self._stages = stages
        self._budget.forget()

    def step(self, timeout_s: float = 0.2) -> Tick:
        """Wait at most `timeout_s` seconds for a frame and bring it to the outbox.

        Raises:
            EdgeError: what a stage or the source raised; the loop may be stepped again.
        """
        return self._step(timeout_s)[0]

    def __iter__(self) -> Iterator[Result]:
        """Step until the source ends or `stop` was called, and give each result once it was delivered.

        What is done with it does not count against the budget of this frame. The picture in `result.frame` is the
        source's, which may overwrite it with the next one: copy it to keep it; all other arrays are the result's own.

        Raises:
            EdgeError: what a stage or the source raised; the loop may be iterated over again.
        """
        while not self._is_stopped:
            result = self._step(_STEP_TIMEOUT_S)[1]
            if result is not None:
                yield result
            if self._source.ended:
                return

    def run(self) -> None:
        """Step until the source ends, which a camera never does, or `stop` was called.

        Raises:
            EdgeError: what a stage or the source raised; the loop may be run again.
        """
        for _ in self:
            pass

    def stop(self) -> None:
        """Have `run`, or the iteration, end after this step; from any thread, or from a signal's handler."""
        self._is_stopped = True

    def _step(self, timeout_s: float) -> tuple[Tick, Result | None]:
        frame = self._source.latest(timeout_s)
        outcome = (Tick.IDLE, None) if frame is None else self._process(frame)
        self.counts[outcome[0]] += 1
        return outcome

    def _is_too_soon(self, frame: Frame) -> bool:
        return frame.captured_ns < self._due_ns <= frame.captured_ns + self.least_gap_ns

    def _process(self, frame: Frame) -> tuple[Tick, Result | None]:
        if not isinstance(frame, Frame):  # sources are anybody's
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
        self._budget.record(self._clock_ns() - started_ns)
        if self._sink is not None:
            self._sink.put(result)
        delivered_ns = self._clock_ns()
        self.last_age_ns, self.last_serial_ns = delivered_ns - frame.captured_ns, delivered_ns - started_ns
        self.last_run_ns = result.inference_ns
        for observer in self._observers:
            observer.put(result)
        return (Tick.LATE if self._budget.is_late(frame.captured_ns, delivered_ns) else Tick.ON_TIME), result
