"""Report the health of the machine and this process to the service manager, the broker and the log.

    Gauges.read() -> Readings -> Alarms.update() -> warnings
                              -> TelemetryMessage

`HealthReporter` decides when. The service manager gets "ready" once all pipelines have begun, and watchdog messages
while all of them make progress. The broker gets telemetry after every reading, the log the duration of the start and
the alarms. An alarm is one entry of `_RULES`: its name, its level, its line. A reading that is missing, unreadable
or implausible is None, never an error.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from msgspec import UNSET

from edge_sdk.core.errors import OutputError
from edge_sdk.core.files import state_folder
from edge_sdk.core.logs import Alarm, counted
from edge_sdk.core.machine import CpuTime, free_bytes, read_board
from edge_sdk.core.threads import Periodic
from edge_sdk.messages.schema import EventLosses, EventsHealth, TelemetryMessage
from edge_sdk.outbox.event import EventStats
from edge_sdk.publishing.publisher import PublisherStats
from edge_sdk.service.output import Output
from edge_sdk.service.pipeline import Pipeline
from edge_sdk.service.process import Notifier, Start
from edge_sdk.service.runner import Progress

_log = logging.getLogger(__name__)
_MB = 1_000_000
_INTERVAL_S = 10.0
_TURN_S = 330.0  # longest start of one pipeline: a trial of its bundle (90 s), then the load of its model (240 s)


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of the machine and this process, for telemetry and alarms; None is unknown."""

    temperature_c: float | None = None
    throttled: str = ""  # why the board slows itself down now
    under_voltage: bool | None = None
    memory_free_mb: float | None = None
    memory_rss_mb: float | None = None
    disk_free_mb: float | None = None
    disk_mb: float | None = None
    cpu_share: float | None = None
    load1: float | None = None
    open_files: int | None = None
    open_files_limit: int | None = None
    uptime_s: float | None = None


_MEASURED = {"temperature_c", "memory_free_mb", "memory_rss_mb", "disk_free_mb", "cpu_share", "load1", "uptime_s"}


class Gauges:
    """Reads the state of the machine and of this process; only one thread at a time may use it."""

    def __init__(
        self, folder: Path | None, root: Path = Path("/"), clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._root, self._clock_s = folder, root, clock_s
        self._before: tuple[float, float] | None = None

    def read(self) -> Readings:
        """Read all values."""
        board, proc, free = read_board(self._root / "sys"), self._root / "proc", free_bytes(self._root)
        disk_free_mb, disk_mb = _disk(self._folder)
        open_files, open_files_limit = _open_files(proc / "self")
        return Readings(
            temperature_c=board.temperature_c,
            throttled=board.throttled,
            under_voltage=board.under_voltage,
            memory_free_mb=None if free is None else free / _MB,
            memory_rss_mb=_number_at(proc / "self/statm", 1, os.sysconf("SC_PAGE_SIZE"), _MB),
            disk_free_mb=disk_free_mb,
            disk_mb=disk_mb,
            cpu_share=self._cpu_share(),
            load1=_number_at(proc / "loadavg", 0),
            open_files=open_files,
            open_files_limit=open_files_limit,
            uptime_s=_number_at(proc / "uptime", 0),
        )

    def _cpu_share(self) -> float | None:
        now_s, own_s = self._clock_s(), CpuTime.read(self._root).own_s
        before, self._before = self._before, (now_s, own_s)
        if before is None or now_s <= before[0]:
            return None
        return max(0.0, own_s - before[1]) / (now_s - before[0])


def _disk(folder: Path | None) -> tuple[float | None, float | None]:
    """Return the free space for this user and the total, in 10^6 bytes, of the disk of the nearest existing parent."""
    with contextlib.suppress(OSError):
        near = next((each for each in (folder, *folder.parents) if each.exists()), None) if folder else None
        if near is not None:
            disk = shutil.disk_usage(near)
            return disk.free / _MB, disk.total / _MB
    return None, None


def _number_at(path: Path, position: int, times: int = 1, parts: int = 1) -> float | None:
    """Return the number that is the word at `position` in a file, multiplied by `times` and divided by `parts`."""
    try:
        return float(path.read_text(encoding="ascii").split()[position]) * times / parts
    except (OSError, ValueError, IndexError):
        return None


def _open_files(own: Path) -> tuple[int | None, int | None]:
    """Return the open descriptors of this process and their limit; at the limit, the folder itself cannot be opened."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return sum(1 for _ in (own / "fd").iterdir()), limit
    except OSError as cause:
        return (limit, limit) if cause.errno == errno.EMFILE else (None, None)


_LITTLE_DISK_MB = 500.0  # low free space of a large disk; on a small disk, a twentieth of it is low
_LITTLE_DISK_SHARE = 0.05
_LITTLE_MEMORY_MB = 64.0  # less than a small model needs while another one runs
_HOT_C = 80.0  # where a Raspberry Pi begins to slow down
_MANY_FILES_SHARE = 0.8
_CLEAR = 0.7  # share of an alarm's level below which the alarm ends
_CLEAR_HOT = (_HOT_C - 5) / _HOT_C
_CALM_READINGS = 6  # a weak power supply fails for moments, whenever the board is under load


class _Rule(msgspec.Struct, frozen=True):
    """One alarm. It ends at a lower level than it begins, so that a reading near the limit does not toggle it."""

    name: str  # name of the warning in the state's `warnings`
    level: Callable[[Readings], float | None]  # 1 or more is an alarm; None is unknown
    line: Callable[[Readings], str]
    clear: float = _CLEAR  # the alarm is over below this level
    calm: int = 1  # number of consecutive readings below `clear` that end the alarm


def _disk_level(readings: Readings) -> float | None:
    if readings.disk_free_mb is None or not readings.disk_mb:
        return None
    return min(_LITTLE_DISK_MB, readings.disk_mb * _LITTLE_DISK_SHARE) / max(readings.disk_free_mb, 1e-6)


def _memory_level(readings: Readings) -> float | None:
    return None if readings.memory_free_mb is None else _LITTLE_MEMORY_MB / max(readings.memory_free_mb, 1e-6)


def _files_level(readings: Readings) -> float | None:
    limit = readings.open_files_limit
    if readings.open_files is None or not limit or limit == resource.RLIM_INFINITY:
        return None
    return readings.open_files / limit / _MANY_FILES_SHARE


_RULES = (
    _Rule(
        "disk",
        _disk_level,
        lambda r: (
            f"the disk is nearly full: {r.disk_free_mb:.0f} MB are free of {r.disk_mb:.0f}; make room, or new "
            "bundles and results that wait for the broker cannot be kept"
        ),
    ),
    _Rule(
        "memory",
        _memory_level,
        lambda r: f"memory is low: {r.memory_free_mb:.0f} MB are free; end other programs, or run a smaller model",
    ),
    _Rule(
        "hot",
        lambda r: None if r.temperature_c is None else r.temperature_c / _HOT_C,
        lambda r: (
            f"the board is hot: {r.temperature_c:.0f} degrees; from {_HOT_C:.0f} on it slows itself down, so cool it"
        ),
        clear=_CLEAR_HOT,
    ),
    _Rule(
        "under_voltage",
        lambda r: None if r.under_voltage is None else float(r.under_voltage),
        lambda _: (
            "the power supply is too weak: the board slows itself down and may lose what it writes; take the "
            "supply and the cable that its maker names"
        ),
        calm=_CALM_READINGS,
    ),
    _Rule(
        "open_files",
        _files_level,
        lambda r: (
            f"{r.open_files} of {r.open_files_limit} files that this process may open are open; at the limit cameras "
            "and the broker cannot be reached again: raise it (LimitNOFILE= of the unit, or prlimit while it runs)"
        ),
    ),
)


class Alarms:
    """Decides which alarms begin and which end."""

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self._alarms = {rule.name: Alarm(rule.name, warn) for rule in _RULES}
        self._calm: dict[str, int] = {}  # consecutive readings below `clear`, by active alarm

    def update(self, readings: Readings) -> None:
        """Evaluate new readings; an alarm whose reading is unknown stays as it is."""
        for rule in _RULES:
            level, alarm = rule.level(readings), self._alarms[rule.name]
            if level is None:
                continue
            if level >= 1:
                self._calm[rule.name] = 0
                if not alarm.line:
                    alarm.tell(rule.line(readings))
            elif alarm.line:
                self._calm[rule.name] = self._calm[rule.name] + 1 if level < rule.clear else 0
                if self._calm[rule.name] >= rule.calm:
                    alarm.tell("")


class HealthReporter:
    """Reports the health of a process; used from its main thread."""

    def __init__(
        self,
        notifier: Notifier,
        start: Start,
        output: Output,
        progress: Progress,
        *,
        gauges: Gauges | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notifier, self._progress, self._clock_s = notifier, progress, clock_s
        self._start: Start | None = start
        self._output, self._alarms, self._gauges = output, Alarms(output.warn), gauges or Gauges(_state_folder())
        self._is_ready = self._has_been_ready = False
        self._ready_words = ""
        self._turns = 0
        self._reading: Periodic | None = None
        self._readings: Readings | None = None  # readings that are not published yet

    def look(self, pipelines: Iterable[Pipeline], *, have_begun: bool, turns: int = 0) -> None:
        """Report changes; to be called a few times a second, with the number of pipeline starts begun so far."""
        if turns != self._turns and not self._has_been_ready:
            self._turns = turns
            self._notifier.starting(_TURN_S)
        if have_begun and not self._is_ready:
            self._be_ready(pipelines)
        is_watched = self._has_been_ready and self._notifier.interval_s is not None
        if is_watched and self._progress.is_due(self._clock_s()):
            self._notifier.watchdog()
        if self._start is not None:
            self._look_at_start(self._start, pipelines)
        readings, self._readings = self._readings, None
        if readings is not None:
            self._publish(readings, pipelines)
            self._notifier.repeat()

    def reloading(self, words: str = "") -> None:
        """Tell the service manager that a reload is under way, until all pipelines have begun."""
        self._notifier.reloading()
        self._is_ready, self._ready_words = False, words

    def stopping(self) -> None:
        """Tell the service manager that the process is stopping."""
        self._notifier.stopping()

    def close(self) -> None:
        """Stop reading and reporting; do not wait for a reading that hangs."""
        if self._reading is not None:
            self._reading.close()
        self._notifier.close()

    def _be_ready(self, pipelines: Iterable[Pipeline]) -> None:
        titles = [pipeline.title for pipeline in pipelines if pipeline.title]
        if not titles:
            return
        self._is_ready = self._has_been_ready = True
        words = titles[0] if len(titles) == 1 else f"{counted(len(titles), 'pipeline')}: {', '.join(titles)}"
        self._notifier.ready(self._ready_words or words)
        # The readings have a thread of their own, because a disk or a driver may hang.
        self._reading = self._reading or Periodic(self._read, _INTERVAL_S, "edge-health")

    def _read(self) -> None:
        self._readings = readings = self._gauges.read()
        self._alarms.update(readings)

    def _look_at_start(self, start: Start, pipelines: Iterable[Pipeline]) -> None:
        """Log the duration of the start once the first pipeline has a result."""
        first = next((pipeline for pipeline in pipelines if pipeline.first_result_ns), None)
        if first is not None:
            start.mark("model", first.model_ns)
            start.mark("source", first.source_ns)
            start.mark("first frame and result", first.first_result_ns)
            _log.info(start.line())
            self._start = None

    def _publish(self, readings: Readings, pipelines: Iterable[Pipeline]) -> None:
        clock, stats = self._output.clock, self._output.stats()
        put_forward_s = clock.look()
        if put_forward_s is not None:
            _log.info(f"the clock is set by a time server now: {put_forward_s:+.1f} s; times before were that much off")
        health = {pipeline.settings.camera: pipeline.health() for pipeline in pipelines}
        events, snapshots_lost = (
            (stats.events, stats.snapshots_lost) if isinstance(stats, PublisherStats) else (None, 0)
        )
        known = {key: value for key, value in msgspec.structs.asdict(readings).items() if value is not None}
        message = TelemetryMessage(
            **msgspec.structs.asdict(self._output.identity),
            **{key: round(value, 3) for key, value in known.items() if key in _MEASURED},
            at=datetime.now(timezone.utc),
            throttled=readings.throttled.split(", ") if readings.throttled else [],
            open_files=known.get("open_files", UNSET),
            clock=UNSET if clock.is_synchronised else "unsynchronised",
            events=UNSET if events is None or not (events.put or events.restored) else _events(events),
            snapshots_lost=snapshots_lost or UNSET,
            cameras={camera: found for camera, found in health.items() if found is not None},
        )
        self._output.telemetry(message)


def _events(events: EventStats) -> EventsHealth:
    return EventsHealth(
        put=events.put,
        delivered=events.delivered,
        waiting=events.waiting,
        durable=events.is_durable,
        lost=EventLosses(**msgspec.structs.asdict(events.lost)),
        limited=events.limited,
    )


def _state_folder() -> Path | None:
    try:
        return state_folder()
    except OutputError:
        return None
