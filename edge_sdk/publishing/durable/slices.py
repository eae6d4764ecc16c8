"""Slices: events in the portions of one commit each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edge_sdk.publishing.durable.held import Held

_MOST = 1000


def slices(events: Iterable[Held], most_bytes: int) -> Iterator[list[Held]]:
    """Portions of at most a thousand events and so many bytes, or of one that is larger; no empty one."""
    some: list[Held] = []
    size = 0
    for event in events:
        if some and (len(some) >= _MOST or size + event.cost > most_bytes):
            yield some
            some, size = [], 0
        some.append(event)
        size += event.cost
    if some:
        yield some
