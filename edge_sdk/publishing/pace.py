"""Pace: at most so many of each camera a second, the newest of what is more.

What comes too early is held until its time has come, and what comes before that takes its place: the last one of a
burst is never lost. Whoever empties it late, or never, has no other ones left out than who does it in time.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


class Pace(Generic[_T, _R]):
    """Filled by the cameras' threads, released by another one.

    Args:
        max_per_s: of each camera; None: no limit.
        go: is given each one when it goes, those of a camera in their order; with a limit one at a time.
        clock_s: monotonic seconds.
        go_late: is given those that were held, in place of `go`; must not raise: who put them is not there any more.
    """

    def __init__(
        self,
        max_per_s: float | None,
        go: Callable[[_T], _R],
        clock_s: Callable[[], float] = time.monotonic,
        go_late: Callable[[_T], object] | None = None,
    ) -> None:
        self._interval_s = 0.0 if max_per_s is None else 1.0 / max_per_s
        self._go, self._go_late, self._clock_s = go, go_late or go, clock_s
        self._lock = threading.Lock()
        self._not_before: dict[str, float] = {}
        self._held: dict[str, _T] = {}
        self._limited: dict[str, int] = {}

    def put(self, camera: str, item: _T) -> _R | None:
        """Let it go where its time has come; otherwise it is held, in place of what was held before.

        Returns:
            What `go` said; None while it is held.
        """
        if not self._interval_s:
            return self._go(item)
        with self._lock:
            now = self._clock_s()
            self._release(camera, now)
            not_before = self._not_before.get(camera, -math.inf)
            if camera in self._held:
                self._limited[camera] = self._limited.get(camera, 0) + 1
            elif now >= not_before:
                # In step, so that a camera's own pace does not lower the rate; but nothing is made up for.
                turn = not_before if now - not_before < self._interval_s else now
                self._not_before[camera] = turn + self._interval_s
                return self._go(item)
            self._held[camera] = item
            return None

    def release(self, *, all_of_them: bool = False) -> None:
        """Let go what was held and whose time has come.

        Args:
            all_of_them: the end has come: nothing is held any longer.
        """
        if not self._held:
            return
        with self._lock:
            now = math.inf if all_of_them else self._clock_s()
            for camera in list(self._held):
                self._release(camera, now)

    def wait_s(self) -> float:
        """Seconds until something is due; infinity where nothing is held."""
        if not self._held:
            return math.inf
        with self._lock:
            now = self._clock_s()
            return max(0.0, min((self._not_before[camera] - now for camera in self._held), default=math.inf))

    def limited(self, camera: str | None = None) -> int:
        """How many others took the place of, of one camera or of all."""
        with self._lock:
            return sum(self._limited.values()) if camera is None else self._limited.get(camera, 0)

    def _release(self, camera: str, now: float) -> None:
        """With the lock: what is held goes as if it had done so when its time came."""
        if camera in self._held and now >= self._not_before[camera]:
            self._not_before[camera] += self._interval_s
            self._go_late(self._held.pop(camera))
