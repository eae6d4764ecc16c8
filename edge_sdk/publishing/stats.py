"""What a publisher says of itself, and of one camera."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from edge_sdk.publishing.durable import EventStats

State: TypeAlias = Literal["connecting", "online", "refused", "closed"]


class StreamStats(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one camera's results so far, those of streams that this one took over from included.

    Attributes:
        put: given to `put`.
        queued: waiting.
        sent: that left: written to the network (QoS 0), answered by the broker (QoS 1), or written as a line.
        acknowledged: that the broker took (QoS 1 only).
        rejected: that the broker answered with a complaint (QoS 1 only).
        dropped: the oldest, when more were waiting than the outbox holds.
        too_large: above the broker's maximum packet size, not sent.
        limited: left out because more came than `max_per_s` allows.
    """

    put: int
    queued: int
    sent: int
    acknowledged: int
    rejected: int
    dropped: int
    too_large: int
    limited: int = 0


class PublisherStats(StreamStats, frozen=True, kw_only=True):
    """What happened to the results of all cameras so far, and to what is published beside them.

    Attributes:
        connects: connections that the broker accepted.
        state: `connecting`, `online`, `refused` (by the broker, or we do not trust it) or `closed`.
        last_error: the latest, for people, also of what was `rejected`; empty when there was none.
        events: what happened to events, which are in no other of these numbers.
        snapshots_lost: pictures that were put, those that commands asked for too, and that the broker will never have:
            there was no room while it was away, or it did not take them.
    """

    connects: int
    state: State
    last_error: str
    events: EventStats = EventStats()
    snapshots_lost: int = 0


class LinesStats(msgspec.Struct, frozen=True):
    """What happened to the lines of all cameras so far.

    Attributes:
        put: given to `put`.
        written: written as a whole.
        dropped: the oldest, when more were waiting than the outbox holds.
    """

    put: int
    written: int
    dropped: int
