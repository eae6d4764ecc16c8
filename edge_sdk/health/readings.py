"""Readings: how the machine and this process are, from /proc and /sys.

What is missing, cannot be read or makes no sense is None, and never an error.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edge_sdk.cpu_time import CpuTime
from edge_sdk.free_memory import free_bytes
from edge_sdk.throttling import read_board

_MB = 1_000_000
_SOFT_LIMIT = 3  # word of "Max open files  SOFT  HARD  files"


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """How the machine and this process are; None is unknown.

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
    """Reads them; one thread at a time.

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
        """Now."""
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
    """What is free for this user, and the whole, in 10^6 bytes; of the nearest folder above that there is."""
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
    """A word of a file's first line."""
    try:
        return float(path.read_text(encoding="ascii").split()[position]) * times
    except (OSError, ValueError, IndexError):
        return None


def _open_files(own: Path) -> tuple[int | None, int | None]:
    """Descriptors of this process, and how many it may have. One that has them all cannot open the folder to count."""
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
