"""Alarm: when the outbox's own thread has something to do."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

_IDLE_S = 60.0
_SOON_S = 0.5  # the file learns so soon what the broker has; a kill before that sends it twice


class Alarm:
    """Of one outbox.

    Attributes:
        is_idle: whether its thread waits: what is put now must ring.
    """

    def __init__(self) -> None:
        self._bell = threading.Event()
        self._soon_at = math.inf
        self.is_idle = True

    def ring(self) -> None:
        """Let the thread look at once."""
        self._bell.set()

    def soon(self) -> None:
        """Let it look within half a second."""
        if self._soon_at == math.inf:
            self._soon_at = time.monotonic() + _SOON_S
            self._bell.set()

    def clear(self) -> None:
        """It looks now."""
        self._soon_at = math.inf

    def wait(self, has_work: Callable[[], bool], due_s: Callable[[], float]) -> None:
        """Wait for something to do.

        Args:
            has_work: whether there is.
            due_s: seconds until there is, whatever comes.
        """
        self.is_idle = True  # before the look: what is put in between rings
        while not has_work():
            wait_s = min(_IDLE_S, due_s(), self._soon_at - time.monotonic())
            if wait_s <= 0:
                break
            is_rung = self._bell.wait(wait_s)
            self._bell.clear()
            if not is_rung:
                break
        self.is_idle = False
