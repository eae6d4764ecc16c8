"""The values of an event outbox: one queued event, what became of all of them, and what was lost for which reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from edge_sdk.messages.schema import Message, MessageKind

Encode: TypeAlias = Callable[[int], bytes]
"""Makes the bytes of an event's message from the event's number."""

_ROW_BYTES = 96
"""What a row, its place in the index and the object in memory cost beside the payload and the topic, about."""
_DENIED = "uthori"  # of "Not authorized", as brokers and paho write it


class QueuedEvent(Message, frozen=True, gc=False):
    """One event that waits in an outbox.

    It has a number among the camera's (`seq`) and a place among all events of the outbox, from 1, in whose order they
    are sent (`id`). `put_s` is when it was put, in seconds of the outbox's clock.
    """

    kind: MessageKind = "event"
    seq: int = 0
    id: int = 0
    put_s: float = 0.0

    @property
    def cost(self) -> int:
        """Bytes that count against a bound."""
        return len(self.payload) + len(self.topic) + _ROW_BYTES


def is_denial(reason: str) -> bool:
    """Return whether a broker's reason says that this device may not write there."""
    return _DENIED in reason


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """How many events never reach the broker, by reason, since the program began.

    Attributes:
        overflow: the oldest, when more were on disk than its bound allows.
        age: events that waited for longer than the bound allows.
        quarantine: events that the broker does not take (too large, not authorized): kept in the file, not sent.
        memory: events that were in memory only, because the disk did not take them, when there was no more room or the
            program ended.
        disk: events on a disk that does not give them back, as far as that is known.
    """

    overflow: int = 0
    age: int = 0
    quarantine: int = 0
    memory: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """All losses together."""
        return self.overflow + self.age + self.quarantine + self.memory + self.disk


class EventStats(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the events of all cameras since the program began.

    At every moment `put` + `restored` = `delivered` + `waiting` + `lost.total`.

    Attributes:
        put: events given to `put`.
        restored: events that earlier starts had left on disk, or in quarantine, and that came up again.
        waiting: events that are not at the broker yet.
        lost: events that it never gets, by reason.
        is_durable: whether what is put goes to disk; False also before the first event, and where no disk is wanted.
        set_aside: damaged files that were put aside.
        limited: events left out because more came than `max_per_s` allows; in no other of these numbers.
    """

    put: int = 0
    restored: int = 0
    waiting: int = 0
    delivered: int = 0
    lost: Losses = Losses()
    is_durable: bool = False
    set_aside: int = 0
    limited: int = 0
