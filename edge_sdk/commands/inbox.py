"""Inbox: messages that came and wait to be looked at; bounded, written by the publisher's thread."""

from __future__ import annotations

import threading
from collections import deque

from edge_sdk.publishing import Incoming

_MOST = 64


class Inbox:
    """A `Receiver` that only keeps what comes until somebody takes it.

    Args:
        most: messages that wait; what comes beyond is counted, and forgotten.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._messages: deque[Incoming] = deque()
        self._refusals: deque[str] = deque(maxlen=8)
        self._lost = 0
        self._lock = threading.Lock()

    def receive(self, incoming: Incoming) -> None:
        """Keep one message, where there is room."""
        with self._lock:
            if len(self._messages) < self._most:
                self._messages.append(incoming)
            else:
                self._lost += 1

    def refused(self, line: str) -> None:
        """Keep what the broker does not let us read."""
        self._refusals.append(line)

    def take(self) -> tuple[list[Incoming], int]:
        """What waits, in order, and how many there was no room for."""
        if not self._messages:
            return [], 0
        with self._lock:
            taken, lost = list(self._messages), self._lost
            self._messages.clear()
            self._lost = 0
            return taken, lost

    def take_refusals(self) -> list[str]:
        """Lines for people."""
        lines = []
        while self._refusals:
            lines.append(self._refusals.popleft())
        return lines
