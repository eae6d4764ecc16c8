"""Outbox: messages that wait for the broker, bounded, the newest kept.

Owns the bounds and the counting of what overflowed, and knows nothing of MQTT. `put` is called by the loop, the rest by
the thread that publishes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import msgspec


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message: where it goes and the bytes of its JSON."""

    topic: str
    payload: bytes


class MemoryOutbox:
    """An outbox that ends with the process.

    Args:
        max_messages: how many wait at most.
        max_bytes: how many bytes of payload wait at most.
    """

    def __init__(self, max_messages: int = 1000, max_bytes: int = 4_000_000) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self.put_count = 0
        self.dropped_count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """Payload bytes that wait."""
        return self._bytes

    def has_room(self, message: Message) -> bool:
        """Whether `put` of this message would drop none that waits; one above all bounds never waits for room."""
        with self._lock:
            fits = len(self._waiting) < self._max_messages and self._bytes + len(message.payload) <= self._max_bytes
            return fits or not self._waiting

    def put(self, message: Message) -> None:
        """Append one message; the oldest make room for it, and are counted."""
        with self._lock:
            self.put_count += 1
            self._waiting.append(message)
            self._bytes += len(message.payload)
            while len(self._waiting) > self._max_messages or self._bytes > self._max_bytes:
                self._bytes -= len(self._waiting.popleft().payload)
                self.dropped_count += 1

    def take(self) -> Message | None:
        """The oldest message, which is the caller's from now on, or None."""
        with self._lock:
            if not self._waiting:
                return None
            message = self._waiting.popleft()
            self._bytes -= len(message.payload)
            return message

    def give_back(self, messages: Sequence[Message]) -> None:
        """Put messages that were taken, and did not arrive, before all others; as far as there is room.

        Args:
            messages: oldest first.
        """
        with self._lock:
            for index in range(len(messages) - 1, -1, -1):
                size = len(messages[index].payload)
                if len(self._waiting) >= self._max_messages or self._bytes + size > self._max_bytes:
                    self.dropped_count += index + 1
                    return
                self._waiting.appendleft(messages[index])
                self._bytes += size
