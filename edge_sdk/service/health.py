"""How the machine and this process do: readings from /proc and /sys, alarms, progress, and the times of the start.

    Gauges.read() -> Readings -> Alarms.update() -> what began or is over -> HealthWatch tells it

An alarm is one entry of `_RULES`: its name, its level, its line. `Progress` knows whether every pipeline moves, so that
a watchdog is told of work and not of a thread that sleeps well. `Start` measures the way to the first result. What is
missing, cannot be read or makes no sense is None, and never an error.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import msgspec

from edge_sdk.core.machine import CpuTime, free_bytes
from edge_sdk.core.threads import Periodic
from edge_sdk.core.throttling import read_board

_MB = 1_000_000
_SOFT_LIMIT = 3  # word of "Max open files  SOFT  HARD  files"


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of the machine and of this process; None is unknown.

    Attributes:
        temperature_c: of the hottest zone, degrees Celsius.
        throttled: why the board slows itself down now, for people; empty when it does not, or does not say.
        under_voltage: whether the power supply is too weak now.
        free_memory_mb: what this process may still take, in 10^6 bytes.
        memory_mb: what this process has in memory (resident set), in 10^6 bytes.
        disk_free_mb: what this user may still write where the state is, in 10^6 bytes.
        disk_mb: size of that file system, in 10^6 bytes.
        cpu_share: processor time of this process since the reading before, 1 is one core.
        load1: processes that ran or waited in the last minute, on average.
        open_files: descriptors of this process.
        open_files_limit: how many it may have.
        uptime_s: since the machine's boot, seconds.
    """

    temperature_c: float | None = None
    throttled: str = ""
    under_voltage: bool | None = None
    free_memory_mb: float | None = None
    memory_mb: float | None = None
    disk_free_mb: float | None = None
    disk_mb: float | None = None
    cpu_share: float | None = None
    load1: float | None = None
    open_files: int | None = None
    open_files_limit: int | None = None
    uptime_s: float | None = None


class Gauges:
    """Reads how the machine and this process are; one thread at a time.

    Args:
        folder: where the device keeps its state; the disk below it is looked at, itself need not exist.
        root: the folder that holds `proc` and `sys`; another one in tests.
        clock_s: monotonic seconds; injected by tests.
    """

    def __init__(
        self, folder: Path | None, root: Path = Path("/"), clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._root, self._clock_s = folder, root, clock_s
        self._before: tuple[float, float] | None = None

    def read(self) -> Readings:
        """Return how they are now."""
        board, proc = read_board(self._root / "sys"), self._root / "proc"
        disk_free_mb, disk_mb = _disk(self._folder)
        open_files, open_files_limit = _open_files(proc / "self")
        return Readings(
            temperature_c=board.temperature_c,
            throttled=board.throttled,
            under_voltage=board.under_voltage,
            free_memory_mb=_in_mb(free_bytes(self._root)),
            memory_mb=_in_mb(_number_at(proc / "self/statm", 1, os.sysconf("SC_PAGE_SIZE"))),
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


def _in_mb(size: float | None) -> float | None:
    return None if size is None else size / _MB


def _disk(folder: Path | None) -> tuple[float | None, float | None]:
    """Return what is free for this user, and the whole, in 10^6 bytes, of the nearest folder above that there is."""
    for near in () if folder is None else (folder, *folder.parents):
        try:
            disk = os.statvfs(near)
        except FileNotFoundError:
            continue
        except OSError:
            break
        return disk.f_bavail * disk.f_frsize / _MB, disk.f_blocks * disk.f_frsize / _MB
    return None, None


def _number_at(path: Path, position: int, times: int = 1) -> float | None:
    """Return a word of a file as a number, `times` as much."""
    try:
        return float(path.read_text(encoding="ascii").split()[position]) * times
    except (OSError, ValueError, IndexError):
        return None


def _open_files(own: Path) -> tuple[int | None, int | None]:
    """Count descriptors of this process, and those it may have; one that has them all cannot open the folder."""
    try:
        count = sum(1 for _ in (own / "fd").iterdir())
    except OSError as cause:
        if cause.errno != errno.EMFILE:
            return None, _open_files_limit(own / "limits")
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return most, most
    return count, _open_files_limit(own / "limits")


def _open_files_limit(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return next((int(line.split()[_SOFT_LIMIT]) for line in lines if line.startswith("Max open files")), None)
    except (OSError, ValueError, IndexError):  # `unlimited` is no number, and no limit
        return None


_LITTLE_DISK_MB = 500.0  # of a large disk; of a small one a twentieth is little
_LITTLE_DISK_SHARE = 0.05
_LITTLE_MEMORY_MB = 64.0  # less than a small model takes while another one runs
_HOT_C = 80.0  # where a Raspberry Pi begins to slow down
_MANY_FILES_SHARE = 0.8
_CLEAR = 0.7  # of the level at which an alarm began
_CLEAR_HOT = (_HOT_C - 5) / _HOT_C
_CALM_READINGS = 6  # a weak power supply fails for moments, whenever the board works


class _Rule(msgspec.Struct, frozen=True):
    """One alarm. It is left at another level than it is reached, so that a reading beside the limit does not flap.

    Attributes:
        name: of what is wrong, as in the status's `warnings`.
        level: of the readings; 1 and more is an alarm; None: unknown.
        line: for people.
        clear: the alarm is over below this level.
        calm: after so many readings in a row.
    """

    name: str
    level: Callable[[Readings], float | None]
    line: Callable[[Readings], str]
    clear: float = _CLEAR
    calm: int = 1


def _disk_level(readings: Readings) -> float | None:
    if readings.disk_free_mb is None or not readings.disk_mb:
        return None
    return min(_LITTLE_DISK_MB, readings.disk_mb * _LITTLE_DISK_SHARE) / max(readings.disk_free_mb, 1e-6)


def _memory_level(readings: Readings) -> float | None:
    return None if readings.free_memory_mb is None else _LITTLE_MEMORY_MB / max(readings.free_memory_mb, 1e-6)


def _files_level(readings: Readings) -> float | None:
    if readings.open_files is None or not readings.open_files_limit:
        return None
    return readings.open_files / readings.open_files_limit / _MANY_FILES_SHARE


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
        lambda r: f"memory is low: {r.free_memory_mb:.0f} MB are free; end other programs, or run a smaller model",
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
    """Decides which alarms are on."""

    def __init__(self) -> None:
        self._calm: dict[str, int] = {}  # of those that are on: readings in a row that were below

    def update(self, readings: Readings) -> list[tuple[str, str]]:
        """Look at new readings.

        Returns:
            What changed, by name: a line for people, or an empty one when it is over. What became unknown did not.
        """
        changes = []
        for rule in _RULES:
            level = rule.level(readings)
            if level is None:
                continue
            if level >= 1:
                if rule.name not in self._calm:
                    changes.append((rule.name, rule.line(readings)))
                self._calm[rule.name] = 0
            elif rule.name in self._calm and self._is_over(rule, level):
                changes.append((rule.name, ""))
        return changes

    def _is_over(self, rule: _Rule, level: float) -> bool:
        self._calm[rule.name] = self._calm[rule.name] + 1 if level < rule.clear else 0
        if self._calm[rule.name] < rule.calm:
            return False
        del self._calm[rule.name]
        return True


_INTERVAL_S = 10.0

Tell: TypeAlias = Callable[[str, str], None]
"""Takes the name of an alarm and its line, an empty one when it is over; called in a thread, it must not raise."""


class HealthWatch:
    """Reads every ten seconds, in a thread of its own: a disk or a driver that hangs holds nothing else up.

    Args:
        gauges: what reads.
        tell: what is told of alarms.
        interval_s: seconds between two readings.

    Attributes:
        readings: the latest; None before the first. Looking at them costs nothing.
    """

    def __init__(self, gauges: Gauges, tell: Tell, interval_s: float = _INTERVAL_S) -> None:
        self.readings: Readings | None = None
        self._gauges, self._tell, self._alarms = gauges, tell, Alarms()
        self._reading = Periodic(self._look, interval_s, "edge-health")

    def close(self) -> None:
        """Stop reading; does not wait for what hangs."""
        self._reading.close()

    def _look(self) -> None:
        self.readings = readings = self._gauges.read()
        for name, line in self._alarms.update(readings):
            self._tell(name, line)


class Beat:
    """Counts the steps of one pipeline; a context, after which the pipeline is no longer waited for.

    Attributes:
        steps: how many there were; only the pipeline's own thread writes it, so it needs no lock.
    """

    __slots__ = ("_forget", "steps")

    def __init__(self, forget: Callable[[], object]) -> None:
        self._forget = forget
        self.steps = 0

    def after_step(self) -> None:
        """Count one more; a step that no frame came to counts, one that never returns does not."""
        self.steps += 1

    def end(self) -> None:
        """Forget the pipeline, which is over."""
        self._forget()

    def __enter__(self) -> Beat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Progress:
    """Knows whether all pipelines of a process move.

    Pipelines begin and end in threads of their own; `is_due` is called from one thread, a few times an interval.

    Args:
        interval_s: seconds between two messages to the watchdog.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._beats: dict[int, Beat] = {}  # one call changes it, and `dict.copy` is one too: neither can be interrupted
        self._numbers = itertools.count()
        self._seen: dict[int, int] = {}
        self._told_s: float | None = None

    def begin(self) -> Beat:
        """Count a pipeline that steps from now on."""
        number = next(self._numbers)
        beat = self._beats[number] = Beat(lambda: self._beats.pop(number, None))
        return beat

    @property
    def is_any(self) -> bool:
        """Whether a pipeline steps."""
        return bool(self._beats)

    def is_due(self, now_s: float) -> bool:
        """Tell whether the watchdog is to be told now: an interval is over, and in it every pipeline moved.

        Asked again soon after it was not, it says so as soon as the slowest has moved: a machine that was paused, where
        nobody moved, is no hang. Where no pipeline steps there is none that hangs.

        Args:
            now_s: monotonic, seconds.
        """
        if self._told_s is not None and now_s - self._told_s < self._interval_s:
            return False
        beats = self._beats.copy()
        steps = {key: beat.steps for key, beat in beats.items()}
        # One that began since is not compared: it may load its model for as long as the start may take.
        if any(steps[key] == self._seen[key] for key in steps.keys() & self._seen.keys()):
            return False
        self._told_s, self._seen = now_s, steps
        return True


_STARTED_COLUMN = 19  # of /proc/self/stat (proc_pid_stat(5)), counted from behind the name, which may hold blanks


def process_age_s(root: Path = Path("/"), now_s: float | None = None) -> float | None:
    """Return the seconds since this process was started, to a hundredth; None where /proc does not say.

    Args:
        root: the folder that holds `proc`; another one in tests.
        now_s: seconds since the machine's boot, with the time it slept; by default now.
    """
    try:
        text = (root / "proc/self/stat").read_text(encoding="utf-8", errors="replace")
        ticks = int(text.rpartition(")")[2].split()[_STARTED_COLUMN])
    except (OSError, ValueError, IndexError):
        return None
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME) if now_s is None else now_s
    age_s = now_s - ticks / os.sysconf("SC_CLK_TCK")
    return age_s if age_s >= 0 else None  # in a container whose clock is shifted the two have nothing in common


class StartTimes(msgspec.Struct, frozen=True):
    """The times of the steps of a start.

    Attributes:
        first_result_ms: from the start of the process to the first result in the outbox.
        parts_ms: by name, in their order, what of it went by until each mark since the one before.
    """

    first_result_ms: float
    parts_ms: dict[str, float]

    def line(self) -> str:
        """Write it for people."""
        parts = ", ".join(f"{name} {part_ms / 1000:.2f}" for name, part_ms in self.parts_ms.items())
        return f"first result {self.first_result_ms / 1000:.2f} s after start ({parts})"


class Start:
    """Measures the way from the process's start to the first result.

    Args:
        age_s: of the process now, seconds; by default as /proc has it, or counted from now where that says nothing.
        clock_ns: monotonic nanoseconds; injected by tests.

    Attributes:
        times: once there was a result.
    """

    def __init__(self, age_s: float | None = None, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        age_s = process_age_s() if age_s is None else age_s
        self._clock_ns = clock_ns
        self._last_ns = clock_ns()
        self._started_ns = self._last_ns - round((age_s or 0) * 1e9)
        self._parts_ms: dict[str, float] = {}
        self.times: StartTimes | None = None
        if age_s is not None:
            self._parts_ms["interpreter and command"] = age_s * 1000

    def mark(self, name: str, at_ns: int | None = None) -> None:
        """Note that the part of that name is over; nothing after the first result.

        Args:
            name: of the part.
            at_ns: when, monotonic nanoseconds; by default now. What is earlier than the mark before took no time.
        """
        if self.times is None:
            now_ns = max(self._clock_ns() if at_ns is None else at_ns, self._last_ns)
            self._parts_ms[name] = self._parts_ms.get(name, 0.0) + (now_ns - self._last_ns) / 1e6
            self._last_ns = now_ns

    def first_result(self, at_ns: int | None = None) -> StartTimes | None:
        """Note a result in the outbox; return what the start took, and None from the second on; see `mark`."""
        if self.times is not None:
            return None
        self.mark("first frame and result", at_ns)
        self.times = StartTimes((self._last_ns - self._started_ns) / 1e6, dict(self._parts_ms))
        return self.times
