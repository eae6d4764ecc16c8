"""Tell the service manager, the broker and people how the process as a whole does.

`HealthReporter` decides when: the manager hears "ready" once all streams have begun, and the watchdog only while all of
them move; the broker gets telemetry as often as the machine is read; people hear what the start took and of alarms.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from msgspec import UNSET

from edge_sdk.core.errors import OutputError
from edge_sdk.core.files import state_folder
from edge_sdk.core.logs import Alarm, counted
from edge_sdk.messages.schema import CameraHealth, EventLosses, EventsHealth, TelemetryMessage
from edge_sdk.outbox.warnings import EVENTS_LOST, lost_in_words
from edge_sdk.publishing.publisher import LinesStats, PublisherStats
from edge_sdk.service.health import Gauges, HealthWatch, Progress, Readings, Start, Tell
from edge_sdk.service.output import Output
from edge_sdk.service.pipeline import Pipeline
from edge_sdk.service.systemd import Notifier

_log = logging.getLogger(__name__)
_LOST_EVERY_S = 60.0
_TURN_S = 330.0  # for one stream's start: a trial of its bundle (90 s) and the load of its model (240 s) at most


class HealthReporter:
    """Reports the health of a process; used from its main thread.

    Args:
        notifier: tells the service manager.
        start: of the process, marked up to the imports.
        output: where telemetry and warnings go.
        progress: of the streams.
        begin_watch: begins to read how the machine is; takes what is told of alarms.
        clock_s: monotonic seconds, by which the watchdog is told.
    """

    def __init__(
        self,
        notifier: Notifier,
        start: Start,
        output: Output,
        progress: Progress,
        *,
        begin_watch: Callable[[Tell], HealthWatch] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output = output
        self._begin_watch = begin_watch or (lambda tell: HealthWatch(Gauges(_state_folder()), tell))
        self._clock_s = clock_s
        self._notifier, self._start, self._progress = notifier, start, progress
        self._is_ready = self._has_been_ready = False
        self._ready_words = ""
        self._turns = 0
        self._watch: HealthWatch | None = None
        self._read: Readings | None = None
        self._alarms: dict[str, Alarm] = {}
        self._lost, self._lost_at = 0, 0.0

    def look(self, pipelines: Iterable[Pipeline], *, have_begun: bool, turns: int = 0) -> None:
        """Tell what is new; called a few times a second.

        Args:
            pipelines: of all cameras.
            have_begun: whether all that were started run frames, or never will.
            turns: how many of their starts were begun, one after another.
        """
        if turns != self._turns and not self._has_been_ready:
            self._turns = turns
            self._notifier.starting(_TURN_S)
        if have_begun and not self._is_ready:
            self._be_ready(pipelines)
        is_watched = self._has_been_ready and self._notifier.interval_s is not None
        if is_watched and self._progress.is_due(self._clock_s()):
            self._notifier.watchdog()
        if self._start.times is None:
            self._look_at_start(pipelines)
        readings = self._watch.readings if self._watch is not None else None
        if readings is not None and readings is not self._read:
            self._read = readings
            self._look_at_clock()
            health = {pipeline.settings.camera: pipeline.health() for pipeline in pipelines}
            known = {camera: found for camera, found in health.items() if found is not None}
            self._output.telemetry(_message(self._output, readings, known))
            self._look_at_losses()

    def reloading(self, words: str = "") -> None:
        """Tell the manager that the configuration is read again, until all streams have begun.

        Args:
            words: what `systemctl status` shows then; by default what runs.
        """
        self._notifier.reloading()
        self._is_ready, self._ready_words = False, words

    def stopping(self) -> None:
        """Tell the manager that the end has begun."""
        self._notifier.stopping()

    def close(self) -> None:
        """Read and tell nothing more."""
        if self._watch is not None:
            self._watch.close()
        self._notifier.close()

    def _be_ready(self, pipelines: Iterable[Pipeline]) -> None:
        titles = [pipeline.title for pipeline in pipelines if pipeline.title]
        if not titles:
            return
        self._is_ready = True
        words = titles[0] if len(titles) == 1 else f"{counted(len(titles), 'stream')}: {', '.join(titles)}"
        self._notifier.ready(self._ready_words or words)
        if not self._has_been_ready:
            self._has_been_ready = True
            self._watch = self._begin_watch(self._alarm)

    def _look_at_start(self, pipelines: Iterable[Pipeline]) -> None:
        """Say what the start took, once the first stream has a result."""
        for pipeline in pipelines:
            if not pipeline.first_result_ns:
                continue
            self._start.mark("model", pipeline.model_ns)
            self._start.mark("source", pipeline.source_ns)
            times = self._start.first_result(pipeline.first_result_ns)
            if times is not None:
                _log.info(times.line())
            return

    def _look_at_clock(self) -> None:
        put_forward_s = self._output.clock.look()
        if put_forward_s is not None:
            _log.info(f"the clock is set by a time server now: {put_forward_s:+.1f} s; times before were that much off")

    def _look_at_losses(self) -> None:
        """Have the state's warning count lost events: at once where they double, else once a minute."""
        stats, now = self._output.stats(), self._clock_s()
        if not isinstance(stats, PublisherStats) or stats.events.lost.total == self._lost:
            return
        lost = stats.events.lost
        if self._lost <= lost.total < 2 * self._lost and now - self._lost_at < _LOST_EVERY_S:
            return
        self._lost, self._lost_at = lost.total, now
        self._output.warn(EVENTS_LOST, lost_in_words(lost) if lost.total else "")

    def _alarm(self, name: str, line: str) -> None:
        if name not in self._alarms:
            self._alarms[name] = Alarm(name, self._output.warn)
        self._alarms[name].tell(line)


def _state_folder() -> Path | None:
    try:
        return state_folder()
    except OutputError:
        return None


def _message(output: Output, readings: Readings, cameras: dict[str, CameraHealth]) -> TelemetryMessage:
    def known(value: float | None) -> float | msgspec.UnsetType:
        return UNSET if value is None else round(value, 3)

    stats = output.stats()
    return TelemetryMessage(
        **msgspec.structs.asdict(output.identity),
        at=datetime.now(timezone.utc),
        uptime_s=known(readings.uptime_s),
        temperature_c=known(readings.temperature_c),
        throttled=readings.throttled.split(", ") if readings.throttled else [],
        memory_free_mb=known(readings.free_memory_mb),
        memory_rss_mb=known(readings.memory_mb),
        disk_free_mb=known(readings.disk_free_mb),
        cpu_share=known(readings.cpu_share),
        load1=known(readings.load1),
        open_files=UNSET if readings.open_files is None else readings.open_files,
        clock=UNSET if output.clock.is_synchronised else "unsynchronised",
        events=_events(stats),
        snapshots_lost=(stats.snapshots_lost or UNSET) if isinstance(stats, PublisherStats) else UNSET,
        cameras=cameras,
    )


def _events(stats: PublisherStats | LinesStats | None) -> EventsHealth | msgspec.UnsetType:
    if not isinstance(stats, PublisherStats) or not (stats.events.put or stats.events.restored):
        return UNSET
    events = stats.events
    return EventsHealth(
        put=events.put,
        delivered=events.delivered,
        waiting=events.waiting,
        durable=events.is_durable,
        lost=EventLosses(**msgspec.structs.asdict(events.lost)),
        limited=events.limited,
    )
