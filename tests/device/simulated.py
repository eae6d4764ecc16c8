"""A hand-moved clock, a camera on it, and a sink: a loop without any real time."""

from __future__ import annotations

import numpy as np

from edge_sdk.frame import Frame, Result

MS = 1_000_000
_PICTURE = np.zeros((4, 4, 3), np.uint8)


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ms: float) -> None:
        self.now_ns += int(ms * MS)


class Camera:
    """A camera of constant rate whose slot holds the newest frame only; waiting moves the clock."""

    def __init__(self, clock: Clock, period_ms: float, count: int, delay_ms: float = 0) -> None:
        self._clock, self._period_ns, self._count = clock, int(period_ms * MS), count
        self._delay_ns = int(delay_ms * MS)
        self._next = 0

    @property
    def ended(self) -> bool:
        return self._next >= self._count

    def latest(self, timeout_s: float) -> Frame | None:
        newest = min(self._clock.now_ns // self._period_ns, self._count - 1)
        if newest < self._next:
            wait_ns = self._next * self._period_ns - self._clock.now_ns
            if self.ended or wait_ns > timeout_s * 1e9:
                self._clock.now_ns += int(timeout_s * 1e9)
                return None
            self._clock.now_ns += wait_ns
            newest = self._next
        self._next = newest + 1
        captured_ns = newest * self._period_ns - self._delay_ns
        return Frame(_PICTURE, captured_ns, 0.0, newest, "camera", self._delay_ns)

    def close(self) -> None:
        pass


class Collector:
    def __init__(self) -> None:
        self.results: list[Result] = []

    def put(self, result: Result) -> None:
        self.results.append(result)
