"""Ready: events that are read ahead of their turn, by growing ids, bounded by their number and their bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from edge_sdk.publishing.durable.held import Held

_MOST = 512  # events
_MOST_BYTES = 512_000


class Ready:
    """Of one shelf, under its lock."""

    def __init__(self) -> None:
        self._events: deque[Held] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._events)

    def room(self) -> tuple[int, int]:
        """Events and bytes that may be added."""
        return _MOST - len(self._events), _MOST_BYTES - self._bytes

    def take(self) -> Held:
        """The next one."""
        event = self._events.popleft()
        self._bytes -= event.cost
        return event

    def add(self, events: Sequence[Held]) -> None:
        """Add some whose ids are above all others."""
        self._events.extend(events)
        self._bytes += sum(event.cost for event in events)

    def put_first(self, events: Iterable[Held]) -> None:
        """Add some in the order of ids, in which all is sent, and written down as through."""
        self._set([*self._events, *events])

    def drop(self, ids: set[int]) -> None:
        """Some are not to be sent."""
        if ids and self._events and self._events[0].id <= max(ids):
            self._set(event for event in self._events if event.id not in ids)

    def _set(self, events: Iterable[Held]) -> None:
        self._events = deque(sorted(events, key=lambda event: event.id))
        self._bytes = sum(event.cost for event in self._events)
