"""What a publisher says of itself, and of one camera."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

State: TypeAlias = Literal["connecting", "online", "refused", "closed"]


class StreamStats(msgspec.Struct, frozen=True):
    """What happened to one camera's results so far, those of streams that this one took over from included.

    Attributes:
        put: given to `put`.
        queued: waiting.
        sent: that left: written to the network (QoS 0), answered by the broker (QoS 1), or written as a line.
        acknowledged: that the broker took (QoS 1 only).
        rejected: that the broker answered with a complaint (QoS 1 only).
        dropped: the oldest, when more were waiting than the outbox holds.
        too_large: above the broker's maximum packet size, not sent.
    """

    put: int
    queued: int
    sent: int
    acknowledged: int
    rejected: int
    dropped: int
    too_large: int


class PublisherStats(msgspec.Struct, frozen=True):
    """What happened to the results of all cameras so far.

    Attributes:
        put: given to `put`.
        queued: waiting for the broker.
        sent: that left: written to the network (QoS 0) or answered by the broker (QoS 1).
        acknowledged: that the broker took (QoS 1 only).
        rejected: that the broker answered with a complaint (QoS 1 only), `last_error` has the latest.
        dropped: the oldest, when more were waiting than the outbox holds.
        too_large: above the broker's maximum packet size, not sent.
        connects: connections that the broker accepted.
        state: `connecting`, `online`, `refused` (by the broker, or we do not trust it) or `closed`.
        last_error: the latest, for people; empty when there was none.
    """

    put: int
    queued: int
    sent: int
    acknowledged: int
    rejected: int
    dropped: int
    too_large: int
    connects: int
    state: State
    last_error: str


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
