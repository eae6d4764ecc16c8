"""CpuTime: what the processors did, of which this program's own work can be told from all other.

Owns the reading of /proc/stat. What a container does not show is not known, and then nothing is said.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import msgspec

_IDLE, _WAITING = 3, 4  # columns of /proc/stat (proc_stat(5)): idle, and waiting for a disk
_COLUMNS = 8  # user, nice, system, idle, iowait, irq, softirq, steal; guests that follow are in the first two already


class CpuTime(msgspec.Struct, frozen=True):
    """Times since the machine started, in seconds, of the processors that this process may use.

    Attributes:
        total_s: that passed, of all of them together; 0 where it is not known.
        busy_s: that somebody worked, in this system or, for a virtual machine, beside it (steal).
        own_s: that this process worked, and those that it started and that have ended.
    """

    total_s: float
    busy_s: float
    own_s: float

    @classmethod
    def read(cls, root: Path = Path("/"), cpus: Collection[int] | None = None) -> CpuTime:
        """Read them.

        Args:
            root: the folder that holds `proc`; another one in tests.
            cpus: numbers of the processors; those of this process's affinity mask by default.
        """
        names = {f"cpu{number}" for number in (os.sched_getaffinity(0) if cpus is None else cpus)}
        hertz = os.sysconf("SC_CLK_TCK")
        rows = [
            [int(value) / hertz for value in times[:_COLUMNS]]
            for name, *times in map(str.split, _lines(root / "proc/stat"))
            if name in names
        ]
        total_s = sum(map(sum, rows))
        idle_s = sum(times[_IDLE] + times[_WAITING] for times in rows)
        spent = os.times()
        own_s = spent.user + spent.system + spent.children_user + spent.children_system
        return cls(total_s, total_s - idle_s, own_s)

    def others_since(self, before: CpuTime) -> float | None:
        """The share of these processors' time that others took since `before`, 0-1; None where that is not known."""
        total_s = self.total_s - before.total_s
        if total_s <= 0:
            return None
        others_s = self.busy_s - before.busy_s - (self.own_s - before.own_s)
        return min(1.0, max(0.0, others_s / total_s))


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text("ascii").splitlines() if line]
    except (OSError, UnicodeDecodeError):
        return []
