"""Time: whether the wall clock is set by a time server, and percentiles of durations.

A board without a battery starts with the time of its last shutdown, or of its system's making, until a server says the
true one. `WallClock` asks the kernel; whoever writes times looks at its attribute.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_TIMEX_BYTES = 512  # struct timex has 208 where a long has 8; all zero asks and changes nothing


class WallClock:
    """Whether this machine's wall clock is synchronised; looked at now and then, by one thread.

    Args:
        ask: whether the clock is synchronised; None where that cannot be known. The kernel by default.
        offset_s: wall clock minus monotonic clock, seconds.

    Attributes:
        is_synchronised: as of the last look; True where nobody knows, for then nothing is claimed.
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
        """Ask again whether the clock is synchronised.

        Returns:
            When it was synchronised since the last look: seconds by which it was put forward, since it was found not to
            be. None otherwise.
        """
        self.is_synchronised = self._ask() is not False
        if not self.is_synchronised:
            self._unset_s = self._offset_s() if self._unset_s is None else self._unset_s
            return None
        before, self._unset_s = self._unset_s, None
        return None if before is None else self._offset_s() - before


def _kernel_says() -> bool | None:
    """Ask the kernel whether the clock is synchronised; None where there is no such call, or a sandbox forbids it."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds that 50, 95 and 99 % of the durations do not exceed."""

    p50_ms: float
    p95_ms: float
    p99_ms: float


def percentiles_of(durations_ns: NDArray[np.int64]) -> Percentiles | None:
    """Return percentiles of int64 (N,) nanoseconds, rounded to microseconds; None of nothing."""
    if not len(durations_ns):
        return None
    last = len(durations_ns) - 1
    places = np.array([0.50, 0.95, 0.99]) * last
    # As np.percentile does it, which loads modules for 15 ms when it is first called: in the middle of a run.
    values = np.interp(places, np.arange(last + 1), np.sort(durations_ns))
    p50, p95, p99 = (round(float(value) / 1e6, 3) for value in values)
    return Percentiles(p50, p95, p99)
