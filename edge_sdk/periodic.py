"""Periodic: a function that is called now and then beside everything else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from threading import Event, Thread


class Periodic:
    """Calls it every so often, in a thread of its own, until it is closed.

    Args:
        call: what; where it raises it is called again the next time.
        interval_s: seconds between two calls; the first one comes at once.
        name: of the thread.
    """

    def __init__(self, call: Callable[[], None], interval_s: float, name: str) -> None:
        self._call, self._interval_s = call, interval_s
        self._stop = Event()
        # A daemon thread: a driver that hangs while it is read must not keep the process from ending.
        Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """Call no more; does not wait for a call that hangs."""
        self._stop.set()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            # What fails now, for want of memory perhaps, may not the next time; nobody hears of it here.
            with contextlib.suppress(Exception):
                self._call()
            is_over = self._stop.wait(self._interval_s)
