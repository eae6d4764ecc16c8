"""Held: one event that the outbox has.

.

Losses: events that never reach the broker, by why.

What an event outbox says of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from edge_sdk.messages.schema import CameraKind, Message

Encode: TypeAlias = Callable[[int], bytes]
"""An event's number -> its message."""

_ROW_BYTES = 96
"""What a row, its place in the index and the object in memory cost beside the payload and the topic, about."""


class QueuedEvent(Message, frozen=True, gc=False):
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


_DENIED = "uthori"  # of "Not authorized", as brokers and paho write it


def is_denial(reason: str) -> bool:
    """Whether a broker's reason says that this device may not write there."""
    return _DENIED in reason


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """Of one outbox, since the program began.

    Attributes:
        overflow: the oldest, when more were on disk than its bound allows.
        age: that waited for longer than its bound allows.
        quarantine: that the broker does not take (too large, not authorized): kept beside the others, not sent.
        memory: that were in memory only, because the disk did not take them, when there was no more room or the
            program ended.
        disk: that were on a disk which gives them back no more, as far as that is known.
    """

    overflow: int = 0
    age: int = 0
    quarantine: int = 0
    memory: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """Of all classes."""
        return self.overflow + self.age + self.quarantine + self.memory + self.disk


class EventStats(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the events of all cameras since the program began.

    At every moment `put` + `restored` = `delivered` + `waiting` + `lost.total`; what was set aside in the file's
    quarantine is in the last as `lost.quarantine`.

    Attributes:
        put: given to `put`.
        restored: that earlier starts had left on disk, or in quarantine, and that came up again.
        waiting: not at the broker yet.
        delivered: that the broker has.
        lost: that it never gets, by why.
        is_durable: whether what is put goes to disk; False also before the first event, and where no disk is wanted.
        set_aside: files that could not be used any more and were put aside.
        limited: left out because more came than `max_per_s` allows; in no other of these numbers.
    """

    put: int = 0
    restored: int = 0
    waiting: int = 0
    delivered: int = 0
    lost: Losses = Losses()
    is_durable: bool = False
    set_aside: int = 0
    limited: int = 0
