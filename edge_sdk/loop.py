"""The loop: one frame from the camera to the outbox, inside its budget.

Owns the order of the stages and the counting; no thread, no clock, no I/O of its own. Nothing here blocks but the wait
for a frame, and nothing grows.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from edge_sdk.budget import Budget
from edge_sdk.errors import HungRunError
from edge_sdk.frame import Frame, Result
from edge_sdk.protocols import Sink, Source, Stage


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
    """Take the freshest frame, run it, deliver the result.

    Args:
        source: where frames come from.
        stages: Frame -> Result; another may take its place between two steps.
        sink: takes results; the budget ends when its `put` returns.
        budget: the deadline's arithmetic.
        observers: further sinks, served after the deadline was judged: they may be slow, and then cost frames.
        clock_ns: monotonic nanoseconds; injected by tests.

    Attributes:
        every: of the source's frames, by their numbers, at most every `every`-th runs, 1 and up.
        counts: how many steps came to what.
        last_wait_ns: how old the last frame was when it was taken.
        last_age_ns: capture to outbox of the last result.
        last_hang: what was said of the last run that came to no end; empty when there was none.
        last_serial_ns: of it what the loop itself took: prepare, run, decode and outbox.
        last_run_ns: of that the bare run.
    """

    def __init__(
        self,
        source: Source,
        stages: Stage[Frame, Result],
        sink: Sink,
        budget: Budget,
        *,
        observers: Sequence[Sink] = (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._source, self._stages = source, stages
        self._sink, self._budget, self._observers, self._clock_ns = sink, budget, tuple(observers), clock_ns
        self.counts: dict[Tick, int] = dict.fromkeys(Tick, 0)
        self.every = 1
        self.last_wait_ns = self.last_age_ns = self.last_serial_ns = self.last_run_ns = 0
        self.last_hang = ""
        self._last_seq: int | None = None

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
        frame = self._source.latest(timeout_s)
        tick = Tick.IDLE if frame is None else self._process(frame)
        self.counts[tick] += 1
        return tick

    def _process(self, frame: Frame) -> Tick:
        if self.every > 1 and self._last_seq is not None and 0 < frame.seq - self._last_seq < self.every:
            return Tick.SKIPPED
        started_ns = self._clock_ns()
        self.last_wait_ns = started_ns - frame.captured_ns
        if not self._budget.admits(frame.captured_ns, started_ns):
            return Tick.STALE
        self._last_seq = frame.seq
        try:
            result = self._stages(frame)
        except HungRunError as cause:
            self.last_hang = str(cause)
            return Tick.HUNG
        self._budget.record(self._clock_ns() - started_ns)
        self._sink.put(result)
        delivered_ns = self._clock_ns()
        self.last_age_ns, self.last_serial_ns = delivered_ns - frame.captured_ns, delivered_ns - started_ns
        self.last_run_ns = result.inference_ns
        for observer in self._observers:
            observer.put(result)
        return Tick.LATE if self._budget.is_late(frame.captured_ns, delivered_ns) else Tick.ON_TIME
