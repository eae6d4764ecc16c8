"""Rows: events as the file of an outbox has them, each with a checksum: SQLite notices no byte that changed."""

from __future__ import annotations

import zlib
from typing import Any

from edge_sdk.publishing.durable.held import Held

READ = "SELECT id, camera, seq, put_s, topic, payload, crc FROM event"
"""Of such rows."""


def row_of(event: Held) -> tuple[object, ...]:
    """What is written down of an event."""
    return (event.id, event.camera, event.seq, event.put_s, event.topic, event.payload, _checksum(event))


def event_of(row: tuple[int, Any, Any, Any, Any, Any, Any]) -> Held | None:
    """The event of a row that `READ` found; None where it is not what was written."""
    number, camera, seq, put_s, topic, payload, checksum = row
    if not isinstance(payload, bytes) or not isinstance(put_s, float):
        return None
    event = Held(topic, payload, camera, seq=seq, id=number, put_s=put_s)
    return event if _checksum(event) == checksum else None


def _checksum(event: Held) -> int:
    head = f"{event.camera}\0{event.seq}\0{event.topic}"
    return zlib.crc32(event.payload, zlib.crc32(head.encode("utf-8", "replace")))
