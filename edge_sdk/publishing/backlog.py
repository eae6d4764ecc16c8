"""Backlog: messages that were heard and wait for their reader, bounded by their number and their bytes."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

_MOST = 4000
_MOST_BYTES = 64_000_000


class Heard(NamedTuple):
    """One message, as it came."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Backlog:
    """Filled by one thread, emptied by another.

    Args:
        most: messages that wait.
        most_bytes: of their payloads; a single message may be larger.

    Attributes:
        lost: messages for which there was no room, and that will not come again.
    """

    def __init__(self, most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
        self.lost = 0
        self._most, self._most_bytes = most, most_bytes
        self._messages: deque[Heard] = deque()
        self._bytes = 0
        self._changed = threading.Condition()

    @property
    def is_half_full(self) -> bool:
        """Whether who sends should wait."""
        return 2 * len(self._messages) >= self._most or 2 * self._bytes >= self._most_bytes

    def put(self, heard: Heard) -> None:
        """Append one message, or count it as lost."""
        with self._changed:
            size = len(heard.payload)
            is_full = len(self._messages) >= self._most or self._bytes + size > self._most_bytes
            if self._messages and is_full:
                self.lost += 1
                return
            self._messages.append(heard)
            self._bytes += size
            self._changed.notify()

    def take(self, timeout_s: float) -> list[Heard]:
        """All that waits, oldest first; waits so many seconds for the first."""
        with self._changed:
            if not self._messages:
                self._changed.wait(timeout_s)
            taken = list(self._messages)
            self._messages.clear()
            self._bytes = 0
            return taken
