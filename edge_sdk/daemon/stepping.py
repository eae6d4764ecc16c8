"""Stepping: a stream's loop, stepped until there is a reason to stop.

Owns what is looked at after every step, and what is counted for the summary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from edge_sdk.budget import Budget
from edge_sdk.camera import OpenedSource
from edge_sdk.daemon.held_back import HeldBack
from edge_sdk.daemon.obeying import Obeying
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.daemon.summary import RunSummary
from edge_sdk.daemon.troubles import Troubles
from edge_sdk.daemon.undecodable import Undecodable
from edge_sdk.daemon.watched_source import WatchedSource
from edge_sdk.errors import SessionError
from edge_sdk.health.progress import Progress
from edge_sdk.loop import Loop, Supervisor, Tick
from edge_sdk.protocols import Sink
from edge_sdk.publishing import CameraHealth, LinesStats, PublisherStats, Stream
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
        obeying: does what commands have set.
        observers: further sinks.
        watched: the source, as the stream before told of it.

    Attributes:
        loop: that is stepped.
        watched: the source, and what was told of it.
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
        obeying: Obeying,
        observers: Sequence[Sink] = (),
        watched: WatchedSource | None = None,
    ) -> None:
        self._settings, self._source, self._stream = settings, source, stream
        self._budget, self._say = budget, say
        self._record = RunRecord()
        self._troubles = Troubles(self._record, say, stream.warn)
        self.loop = Loop(source, stages, stream, budget, observers=[self._record, obeying, *observers])
        self._obeying = obeying
        self._supervisors: list[Supervisor] = [
            self._record,
            self._troubles,
            Undecodable(lambda: source.stats, say, stream.warn),
            HeldBack(budget.limit_ns, say, stream.warn),
        ]
        if watched is None:
            self.watched = WatchedSource(source, settings.source, stream, say)
        else:
            self.watched = watched
            watched.go_on(stream, say)
        self._overtaken = 0 if watched is None else source.stats.dropped  # before this stream had the source
        self._told = (time.monotonic(), 0)  # when results were counted last, and how many there were
        self.first_result_ns = 0
        self.ended_by: str | None = None

    def run(self, stop: Stop, progress: Progress, steer: Callable[[], list[Supervisor]], *, rare_lines: bool) -> None:
        """Step until the source ends, its limit is reached or `stop` is asked.

        Args:
            stop: ends it.
            progress: is told of every step.
            steer: gives what decides which model runs; called once frames come, whose rate it goes by.
            rare_lines: say how it goes every ten minutes, and not every ten seconds.

        Raises:
            EdgeError: the source, a stage or the sink failed.
        """
        loop, source, frames = self.loop, self._source, self._settings.frames
        interval_ns = _RARELY_NS if rare_lines else _OFTEN_NS
        next_line_ns = time.monotonic_ns() + interval_ns
        is_steered = False
        self.watched.look()
        with progress.begin() as beat:
            while not stop.is_asked():
                if not is_steered and source.status.is_there:
                    is_steered = True
                    self._supervisors += steer()
                tick = self._step()
                beat.after_step()
                for supervisor in self._supervisors:
                    supervisor.after(loop, tick)
                if self._troubles.hopeless is not None:
                    raise SessionError(self._troubles.hopeless)
                if not self.first_result_ns and self._record.results:
                    self.first_result_ns = time.monotonic_ns()
                self.watched.look()
                if frames is not None and self._record.results >= frames:
                    self.ended_by = "frames"
                    return
                if source.ended:
                    self.ended_by = "end of source"
                    return
                now_ns = time.monotonic_ns()
                if now_ns >= next_line_ns:
                    next_line_ns = now_ns + interval_ns  # none is owed by a process that was paused
                    self._say(self._record.line(loop))

    def _step(self) -> Tick:
        """One step; a stream that is paused does as if no frame came."""
        if not self._obeying.is_paused(self.loop):
            return self.loop.step(_STEP_TIMEOUT_S)
        self._obeying.rest(self._source, _STEP_TIMEOUT_S)
        return Tick.IDLE

    def health(self) -> CameraHealth:
        """How it does, with the rate since the last call; one thread asks."""
        now_s, results, age = time.monotonic(), self._record.results, self._record.age()
        (before_s, before), self._told = self._told, (now_s, results)
        return CameraHealth(
            fps=round((results - before) / (now_s - before_s), 2) if now_s > before_s else 0.0,
            age_p50_ms=age.p50_ms if age is not None else msgspec.UNSET,
            results=results,
            dropped=self._stream.stats().dropped,
            reopenings=self._source.stats.reopenings,
            unreadable=self._source.stats.unreadable,
        )

    def summary(self, ended_by: str, of_all: PublisherStats | LinesStats | None) -> RunSummary:
        """What it came to.

        Args:
            ended_by: why it ended.
            of_all: what became of the results of all streams.
        """
        record, loop, stats = self._record, self.loop, self._source.stats
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
            source=msgspec.structs.replace(stats, dropped=stats.dropped - self._overtaken),
            delivery=self._stream.stats(),
            publisher=of_all if isinstance(of_all, PublisherStats) else None,
            lines=of_all if isinstance(of_all, LinesStats) else None,
            ended_by=ended_by,
        )
