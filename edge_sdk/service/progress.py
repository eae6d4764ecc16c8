"""Whether the pipelines of a process move, and how long its start took.

`Progress` knows whether every pipeline moves, so that a watchdog is told of work and not of a thread that sleeps well.
`Start` measures the way to the first result.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path


class Progress:
    """Knows whether all pipelines of a process move.

    Pipelines begin and end in threads of their own; `is_due` is called from one thread, a few times an interval.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._steps: dict[object, int] = {}  # each is written by its thread alone; `dict.copy` cannot be interrupted
        self._seen: dict[object, int] = {}
        self._told_s: float | None = None

    @contextlib.contextmanager
    def begin(self) -> Iterator[Callable[[], None]]:
        """Within, wait for a pipeline, which calls what it is given after every step.

        A step that no frame came to counts, one that never returns does not.
        """
        key = object()
        self._steps[key] = 0

        def after_step() -> None:
            self._steps[key] += 1

        try:
            yield after_step
        finally:
            del self._steps[key]

    @property
    def is_any(self) -> bool:
        """Whether a pipeline steps."""
        return bool(self._steps)

    def is_due(self, now_s: float) -> bool:
        """Tell whether the watchdog is to be told now: an interval is over, and in it every pipeline moved.

        Asked again soon after it was not, it says so as soon as the slowest has moved: a machine that was paused, where
        nobody moved, is no hang. Where no pipeline steps there is none that hangs.
        """
        if self._told_s is not None and now_s - self._told_s < self._interval_s:
            return False
        steps = self._steps.copy()
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


class Start:
    """Measures the way from the process's start to the first result.

    Args:
        age_s: of the process now, seconds; by default as /proc has it, or counted from now where that says nothing.
    """

    def __init__(self, age_s: float | None = None) -> None:
        age_s = process_age_s() if age_s is None else age_s
        self._last_ns = time.monotonic_ns()
        self._started_ns = self._last_ns - round((age_s or 0) * 1e9)
        self._parts_s = {} if age_s is None else {"interpreter and command": age_s}

    def mark(self, name: str, at_ns: int | None = None) -> None:
        """Note that the part of that name is over, now or at a monotonic time; what is earlier took no time."""
        at_ns = max(time.monotonic_ns() if at_ns is None else at_ns, self._last_ns)
        self._parts_s[name] = (at_ns - self._last_ns) / 1e9
        self._last_ns = at_ns

    def line(self) -> str:
        """Say for people how long it took, and each part of it."""
        parts = ", ".join(f"{name} {part_s:.2f}" for name, part_s in self._parts_s.items())
        return f"first result {(self._last_ns - self._started_ns) / 1e9:.2f} s after start ({parts})"
