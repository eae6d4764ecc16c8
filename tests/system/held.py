"""What a process holds and has used, as the kernel tells it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Held(msgspec.Struct, frozen=True):
    """Of one process.

    Attributes:
        memory_mb: resident, in MiB.
        files: open descriptors.
        threads: of it.
        cpu_s: that it has used since its start, seconds.
    """

    memory_mb: float
    files: int
    threads: int
    cpu_s: float


def held_by(pid: int) -> Held:
    """What a process holds now."""
    proc = Path(f"/proc/{pid}")
    pages = int((proc / "statm").read_text(encoding="ascii").split()[1])
    times = (proc / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()  # a name may hold spaces
    files, threads = (sum(1 for _ in (proc / name).iterdir()) for name in ("fd", "task"))
    return Held(pages * _PAGE_MB, files, threads, (int(times[11]) + int(times[12])) * _TICK_S)
