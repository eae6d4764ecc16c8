"""The values of an event outbox: one queued event, the counts of all events, and the losses by reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from edge_sdk.messages.schema import Message, MessageKind

Encode: TypeAlias = Callable[[int], bytes]
"""Function that encodes an event's message with the number that it takes."""

_ROW_BYTES = 96
"""Approximate cost in bytes of an event's row, index entry and object, without its payload and topic."""
_DENIED = "uthori"  # of "Not authorized", as brokers and paho write it


class QueuedEvent(Message, frozen=True, gc=False):
    """One event that waits in an outbox.

    `seq` is its number among the camera's events. `id` is its place among all events of the outbox, from 1, in whose
    order they are sent. `put_s` is the time at which it was put, in seconds of the outbox's clock.
    """

    kind: MessageKind = "event"
    seq: int = 0
    id: int = 0
    put_s: float = 0.0

    @property
    def cost(self) -> int:
        """The bytes that the event counts against a bound."""
        return len(self.payload) + len(self.topic) + _ROW_BYTES


def is_denial(reason: str) -> bool:
    """Return whether a broker's reason says that this device is not authorized to publish to the topic."""
    return _DENIED in reason


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """How many events never reach the broker, by reason, since the program began.

    Attributes:
        overflow: the oldest events, dropped because the file reached its bound.
        age: events that waited for longer than the bound allows.
        quarantine: events that the broker rejects (too large, not authorized); the file keeps them unsent.
        memory: events in memory only, because the disk failed, that were dropped for room or at the program's end.
        disk: events that cannot be read back from the disk, as far as that is known.
    """

    overflow: int = 0
    age: int = 0
    quarantine: int = 0
    memory: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """Return the sum of all losses."""
        return self.overflow + self.age + self.quarantine + self.memory + self.disk


class EventStats(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the events of all cameras since the program began.

    At every moment `put` + `restored` = `delivered` + `waiting` + `lost.total`.

    Attributes:
        put: events given to `put`.
        restored: events that earlier starts had left on disk or in quarantine, and that are sent now.
        waiting: events that are not at the broker yet.
        lost: events that the broker never gets, by reason.
        is_durable: whether new events go to disk; also False before the first event, and where no file is configured.
        set_aside: number of damaged files that were set aside.
        limited: events left out because more came than `max_per_s` allows; no other count includes them.
    """

    put: int = 0
    restored: int = 0
    waiting: int = 0
    delivered: int = 0
    lost: Losses = Losses()
    is_durable: bool = False
    set_aside: int = 0
    limited: int = 0
