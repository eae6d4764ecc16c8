"""CoreWatch: how many cores this process may use, while it runs.

A core is taken away by an affinity mask, a control group or the kernel, and nobody tells the process.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.cores import Cores
from edge_sdk.periodic import Periodic

_INTERVAL_S = 2.0  # a reading takes a millisecond of a slow board; a stream that suffers is judged in two seconds, too


class CoreWatch:
    """Reads them every two seconds, in a thread of its own.

    Args:
        read: reads them.
        interval_s: seconds between two readings.

    Attributes:
        cores: what the last two readings agreed on; looking at it costs nothing.
    """

    def __init__(self, read: Callable[[], Cores] = Cores.read, interval_s: float = _INTERVAL_S) -> None:
        self._read = read
        self.cores = self._before = read()
        self._reading = Periodic(self._look, interval_s, "edge-cores")

    def close(self) -> None:
        """Stop reading."""
        self._reading.close()

    def _look(self) -> None:
        now = self._read()
        if now == self._before:  # quotas that are being written, or one that comes and goes, are worth no other session
            self.cores = now
        self._before = now
