"""Answered: events that the broker says it has, for as long as that is in doubt.

A broker that crashes had acknowledged what it had not written down yet. Each event is doubted once: otherwise a link
that breaks every second would have the same ones sent for ever.
"""

from __future__ import annotations

import time
from collections import deque

from edge_sdk.publishing.durable.held import Held

_MOST = 4096  # events; beyond that the oldest are believed


class Answered:
    """Of one outbox; not for several threads at once."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, Held]] = deque()
        self._doubted_to = 0

    def add(self, event: Held) -> None:
        """The broker has just said that it has this one."""
        if event.id > self._doubted_to:
            self._events.append((time.monotonic(), event))
            if len(self._events) > _MOST:
                self._events.popleft()

    def settle(self, before_s: float) -> bool:
        """Believe what was answered before a moment; whether there is more."""
        while self._events and self._events[0][0] < before_s:
            self._events.popleft()
        return bool(self._events)

    def recall(self, after_s: float) -> list[Held]:
        """What was answered after a moment, which it is in doubt no more."""
        self.settle(after_s)
        events = self.events()
        self._events.clear()
        self._doubted_to = max([self._doubted_to, *(event.id for event in events)])
        return events

    def events(self) -> list[Held]:
        """All that are in doubt."""
        return [event for _, event in self._events]
