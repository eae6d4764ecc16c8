"""Answered: events that the broker says it has, for as long as that is in doubt.

A broker that crashes, or whose machine dies without a word, had acknowledged what it had not written down yet. Each
event is doubted a few times: otherwise a link that breaks every second would have the same ones sent for ever.
"""

from __future__ import annotations

import time
from collections import deque

from edge_sdk.publishing.durable.held import Held

_MOST = 4096  # events; beyond that the oldest are believed
_MOST_DOUBTS = 5  # of one event: a broker that crashed as often right after its answers has other troubles


class Answered:
    """Of one outbox; not for several threads at once."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, Held]] = deque()
        self._lowest: deque[int] = deque()  # ids that no later answer is below: the lowest of all is the first
        self._doubts: dict[int, int] = {}

    def add(self, event: Held) -> None:
        """The broker has just said that it has this one."""
        if self._doubts.get(event.id, 0) < _MOST_DOUBTS:
            self._events.append((time.monotonic(), event))
            while self._lowest and self._lowest[-1] > event.id:
                self._lowest.pop()
            self._lowest.append(event.id)
            if len(self._events) > _MOST:
                self._believe()

    def settle(self, before_s: float) -> bool:
        """Believe what was answered before a moment; whether that is anything."""
        count = len(self._events)
        while self._events and self._events[0][0] < before_s:
            self._believe()
        return len(self._events) < count

    def recall(self) -> list[Held]:
        """All that are in doubt, which are to be sent again."""
        events = self.events()
        self._events.clear()
        self._lowest.clear()
        for event in events:
            self._doubts[event.id] = self._doubts.pop(event.id, 0) + 1
        while len(self._doubts) > _MOST:
            del self._doubts[next(iter(self._doubts))]
        return events

    def events(self) -> list[Held]:
        """All that are in doubt."""
        return [event for _, event in self._events]

    @property
    def lowest_id(self) -> int | None:
        """Of all that are in doubt; asked at each turn, so without a look at each of them."""
        return self._lowest[0] if self._lowest else None

    def _believe(self) -> None:
        _, event = self._events.popleft()
        if self._lowest[0] == event.id:
            self._lowest.popleft()
        self._doubts.pop(event.id, None)
