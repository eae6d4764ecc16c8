"""Start: how long it took from the process's start to the first result, and where that went."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

_STARTED_COLUMN = 19  # of /proc/self/stat (proc_pid_stat(5)), counted from behind the name, which may hold blanks


def process_age_s(root: Path = Path("/"), now_s: float | None = None) -> float | None:
    """Seconds since this process was started, to a hundredth; None where /proc does not say.

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
    """What a start took.

    Attributes:
        first_result_ms: from the start of the process to the first result in the outbox.
        parts_ms: by name, in their order, what of it went by until each mark since the one before.
    """

    first_result_ms: float
    parts_ms: dict[str, float]

    def line(self) -> str:
        """For people."""
        parts = ", ".join(f"{name} {part_ms / 1000:.2f}" for name, part_ms in self.parts_ms.items())
        return f"first result {self.first_result_ms / 1000:.2f} s after start ({parts})"


class Start:
    """Marks on the way to the first result.

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
        """The part of that name is over; nothing after the first result.

        Args:
            name: of the part.
            at_ns: when, monotonic nanoseconds; by default now. What is earlier than the mark before took no time.
        """
        if self.times is None:
            now_ns = max(self._clock_ns() if at_ns is None else at_ns, self._last_ns)
            self._parts_ms[name] = self._parts_ms.get(name, 0.0) + (now_ns - self._last_ns) / 1e6
            self._last_ns = now_ns

    def first_result(self, at_ns: int | None = None) -> StartTimes | None:
        """A result is in the outbox; what the start took, the first time, and None from then on; see `mark`."""
        if self.times is not None:
            return None
        self.mark("first frame and result", at_ns)
        self.times = StartTimes((self._last_ns - self._started_ns) / 1e6, dict(self._parts_ms))
        return self.times
