"""CoreWatch: how many cores this process may use, while it runs.

A core is taken away by an affinity mask, a control group or the kernel, and nobody tells the process.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

from edge_sdk.cores import Cores

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
        self.cores = read()
        self._read, self._interval_s = read, interval_s
        self._stop = Event()
        # A daemon thread: nothing that it reads may keep the process from ending.
        self._thread = Thread(target=self._run, name="edge-cores", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()

    def _run(self) -> None:
        before = self.cores
        while not self._stop.wait(self._interval_s):
            now = self._read()
            if now == before:  # quotas that are being written, or one that comes and goes, are worth no other session
                self.cores = now
            before = now
