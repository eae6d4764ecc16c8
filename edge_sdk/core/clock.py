"""Tell whether a time server has set the wall clock, and compute percentiles of durations.

A board without a clock battery starts with the time of its last shutdown, or of its system image, until a time server
sets its clock. `WallClock` asks the kernel; code that writes times reads its attribute `is_synchronised`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_TIMEX_BYTES = 512  # struct timex has 208 where a long has 8; all zeros: the call reads and changes nothing


class WallClock:
    """State of this machine's wall clock; one thread calls `look` now and then.

    Args:
        ask: function that returns whether the clock is synchronised, or None if unknown; asks the kernel by default.
        offset_s: function that returns the wall clock minus the monotonic clock, in seconds.

    Attributes:
        is_synchronised: whether the clock was synchronised at the last look; True if unknown.
    """

    def __init__(
        self,
        ask: Callable[[], bool | None] | None = None,
        offset_s: Callable[[], float] = lambda: time.time() - time.monotonic(),
    ) -> None:
        self._ask, self._offset_s = ask or _kernel_says, offset_s
        self.is_synchronised = self._ask() is not False
        self._unset_s: float | None = None if self.is_synchronised else offset_s()

    def look(self) -> float | None:
        """Ask again; return the seconds by which the clock moved if it was synchronised since the last look."""
        self.is_synchronised = self._ask() is not False
        if not self.is_synchronised:
            self._unset_s = self._offset_s() if self._unset_s is None else self._unset_s
            return None
        before, self._unset_s = self._unset_s, None
        return None if before is None else self._offset_s() - before


def _kernel_says() -> bool | None:
    """Ask the kernel whether the clock is synchronised; return None if the call is missing or forbidden."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


class Percentiles(msgspec.Struct, frozen=True):
    """The 50th, 95th and 99th percentile of some durations, in milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float


def percentiles_of(durations_ns: NDArray[np.int64]) -> Percentiles | None:
    """Return percentiles of durations, int64 (N,), nanoseconds, rounded to microseconds; None if N is 0."""
    if not len(durations_ns):
        return None
    last = len(durations_ns) - 1
    places = np.array([0.50, 0.95, 0.99]) * last
    # Equals np.percentile, whose first call would spend 15 ms on imports in the middle of a run.
    values = np.interp(places, np.arange(last + 1), np.sort(durations_ns))
    p50, p95, p99 = (round(float(value) / 1e6, 3) for value in values)
    return Percentiles(p50, p95, p99)
