"""Stepping: a stream's loop, stepped until there is a reason to stop.

Owns what is looked at after every step, and what is counted for the summary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from edge_sdk.budget import Budget
from edge_sdk.camera import OpenedSource, redact
from edge_sdk.daemon.outlet import Stream
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.daemon.summary import RunSummary
from edge_sdk.daemon.troubles import Troubles
from edge_sdk.errors import SessionError
from edge_sdk.loop import Loop, Supervisor, Tick
from edge_sdk.protocols import Sink
from edge_sdk.publishing import LinesStats, PublisherStats
from edge_sdk.run_record import RunRecord
from edge_sdk.stages import Stages
from edge_sdk.stop import Stop

_STEP_TIMEOUT_S = 0.2  # how soon a request to stop is seen while no frame comes
_OFTEN_NS = 10_000_000_000
_RARELY_NS = 600_000_000_000  # of a service, whose lines are kept for months


class Stepping:
    """A stream that runs.

    Args:
        settings: of the stream.
        source: opened.
        stages: of the first step.
        stream: takes results, and what is to be known of the stream.
        budget: the deadline's arithmetic.
        say: takes one line for people.
        observers: further sinks.

    Attributes:
        loop: that is stepped.
        supervisors: look at every step; more may be added before `run`.
        beats: steps so far.
        first_result_ns: when the first result was in the outbox, monotonic nanoseconds; 0: not yet.
        ended_by: why it ended by itself; None until then.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        source: OpenedSource,
        stages: Stages,
        stream: Stream,
        budget: Budget,
        say: Say,
        observers: Sequence[Sink] = (),
    ) -> None:
        self._settings, self._source, self._stream = settings, source, stream
        self._budget, self._say = budget, say
        self._record = RunRecord()
        self._troubles = Troubles(self._record, say, stream.warn)
        self.loop = Loop(source, stages, stream, budget, observers=[self._record, *observers])
        self.supervisors: list[Supervisor] = [self._record, self._troubles]
        self.beats = self.first_result_ns = 0
        self.ended_by: str | None = None

    def run(self, stop: Stop, *, rare_lines: bool) -> None:
        """Step until the source ends, its limit is reached or `stop` is asked.

        Args:
            stop: ends it.
            rare_lines: say how it goes every ten minutes, and not every ten seconds.

        Raises:
            EdgeError: the source, a stage or the sink failed.
        """
        loop, source, frames = self.loop, self._source, self._settings.frames
        status = self._tell_source(first=True)
        interval_ns = _RARELY_NS if rare_lines else _OFTEN_NS
        next_line_ns = time.monotonic_ns() + interval_ns
        while not stop.is_asked():
            tick = loop.step(_STEP_TIMEOUT_S)
            self.beats += 1
            for supervisor in self.supervisors:
                supervisor.after(loop, tick)
            if self._troubles.hopeless is not None:
                raise SessionError(self._troubles.hopeless)
            if not self.first_result_ns and self._record.results:
                self.first_result_ns = time.monotonic_ns()
            if frames is not None and self._record.results >= frames:
                self.ended_by = "frames"
                return
            if source.ended:
                self.ended_by = "end of source"
                return
            if source.status is not status:
                status = self._tell_source()
            if time.monotonic_ns() >= next_line_ns:
                next_line_ns += interval_ns
                self._say(self._record.line(loop))

    def _tell_source(self, *, first: bool = False) -> object:
        status, shown = self._source.status, redact(self._settings.source)
        if first:
            self._say(f"source {shown} is open")
        else:
            self._say(f"source {shown}: {status.value}")
        self._stream.source(status.value)
        return status

    def summary(self, stream: Stream, ended_by: str) -> RunSummary:
        """What it came to.

        Args:
            stream: whose counts are part of it.
            ended_by: why it ended.
        """
        record, loop, stats = self._record, self.loop, stream.stats()
        return RunSummary(
            camera=self._settings.camera,
            results=record.results,
            late=loop.counts[Tick.LATE],
            stale=loop.counts[Tick.STALE],
            hung=loop.counts[Tick.HUNG],
            not_finite=record.not_finite,
            skipped=loop.counts[Tick.SKIPPED],
            budget_ms=self._budget.limit_ns / 1e6,
            age=record.age(),
            serial=record.serial(),
            inference=record.inference(),
            fps=record.fps(),
            source=self._source.stats,
            publisher=stats if isinstance(stats, PublisherStats) else None,
            lines=stats if isinstance(stats, LinesStats) else None,
            ended_by=ended_by,
        )
