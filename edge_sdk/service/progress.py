"""Watch whether the pipelines of a process make progress, and measure how long its start took.

`Progress` knows whether every pipeline makes steps, so that the watchdog reports work and not only a living thread.
`Start` measures the way to the first result.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path


class Progress:
    """Knows whether all pipelines of a process make steps.

    Pipelines begin and end in threads of their own; `is_due` is called from one thread, a few times an interval.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._steps: dict[object, int] = {}  # each count is written by its own thread only; `dict.copy` is atomic
        self._seen: dict[object, int] = {}
        self._told_s: float | None = None

    @contextlib.contextmanager
    def begin(self) -> Iterator[Callable[[], None]]:
        """Watch a pipeline within the context; it calls the function that this yields after every step.

        A step without a frame counts; a step that never returns does not.
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
        """Whether any pipeline is watched."""
        return bool(self._steps)

    def is_due(self, now_s: float) -> bool:
        """Return whether to notify the watchdog now: an interval is over, and every pipeline made a step in it.

        Otherwise the next calls return True as soon as the slowest pipeline has made a step, because a machine that was
        paused is not a hang. Without any pipeline the result depends on the interval only.
        """
        if self._told_s is not None and now_s - self._told_s < self._interval_s:
            return False
        steps = self._steps.copy()
        # New pipelines are not compared, because they may load their models for as long as the start may take.
        if any(steps[key] == self._seen[key] for key in steps.keys() & self._seen.keys()):
            return False
        self._told_s, self._seen = now_s, steps
        return True


_STARTED_COLUMN = 19  # index in /proc/self/stat (proc_pid_stat(5)), counted after the name, which may hold blanks


def process_age_s(root: Path = Path("/"), now_s: float | None = None) -> float | None:
    """Return the seconds since this process was started, to a hundredth; None where /proc does not give them.

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
    return age_s if age_s >= 0 else None  # in a container with a shifted clock the two times cannot be compared


class Start:
    """Measures the way from the process's start to the first result.

    Args:
        age_s: age of the process in seconds; by default the value from /proc, or 0 where /proc does not give it.
    """

    def __init__(self, age_s: float | None = None) -> None:
        age_s = process_age_s() if age_s is None else age_s
        self._last_ns = time.monotonic_ns()
        self._started_ns = self._last_ns - round((age_s or 0) * 1e9)
        self._parts_s = {} if age_s is None else {"interpreter and command": age_s}

    def mark(self, name: str, at_ns: int | None = None) -> None:
        """Record that a part of the start ended, now or at a monotonic time; it took 0 s if that is before the last."""
        at_ns = max(time.monotonic_ns() if at_ns is None else at_ns, self._last_ns)
        self._parts_s[name] = (at_ns - self._last_ns) / 1e9
        self._last_ns = at_ns

    def line(self) -> str:
        """Return a line for people with the duration of the start and of each part."""
        parts = ", ".join(f"{name} {part_s:.2f}" for name, part_s in self._parts_s.items())
        return f"first result {(self._last_ns - self._started_ns) / 1e9:.2f} s after start ({parts})"
