"""TrialLimits: what a trial may take, worked out by who asks for it and taken up by the process itself."""

from __future__ import annotations

import contextlib
import resource
import signal
from pathlib import Path

import msgspec

from edge_sdk.free_memory import free_bytes

_SPARE_SHARE = 0.8  # of the memory that is free: the rest is for everybody else


class TrialLimits(msgspec.Struct, frozen=True):
    """What the process may take.

    Attributes:
        memory_bytes: beside what its imports take.
        seconds: by the clock, once it has imported what it needs.
    """

    memory_bytes: int
    seconds: float

    @classmethod
    def here(cls, memory_mb: int, seconds: float) -> TrialLimits:
        """What a bundle may take now.

        Args:
            memory_mb: that its target has, in MiB; less where less is free.
            seconds: for loading and for golden.
        """
        promised, free = memory_mb * 2**20, free_bytes()
        return cls(promised if free is None else min(promised, int(free * _SPARE_SHARE)), seconds)

    def take_up(self) -> None:
        """Limit this process for good; to be called after all imports.

        Where memory runs out all the same, the kernel shall end this process and no other.
        """
        _lower(resource.RLIMIT_DATA, _kilobytes(Path("/proc/self/status"), "VmData:") * 1024 + self.memory_bytes)
        _lower(resource.RLIMIT_CORE, 0)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        # Its default action ends the process, whatever it is in the middle of, even when nobody waits for it any more.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (lowest, lowest))


def _kilobytes(path: Path, key: str) -> int:
    line = next(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(key))
    return int(line.split()[1])
