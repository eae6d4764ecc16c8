"""Held: one event that the outbox has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from edge_sdk.publishing.outbox import CameraKind, Message

Encode: TypeAlias = Callable[[int], bytes]
"""An event's number -> its message."""

_ROW_BYTES = 96
"""What a row, its place in the index and the object in memory cost beside the payload and the topic, about."""


class Held(Message, frozen=True, gc=False):
    """One event; the outbox's own order is that of the ids.

    Attributes:
        seq: its number among the camera's.
        id: its place among all events of the outbox, from 1.
        put_s: when it was put, seconds of the outbox's clock.
    """

    kind: CameraKind = "event"
    seq: int = 0
    id: int = 0
    put_s: float = 0.0

    @property
    def cost(self) -> int:
        """Bytes that count against a bound."""
        return len(self.payload) + len(self.topic) + _ROW_BYTES
