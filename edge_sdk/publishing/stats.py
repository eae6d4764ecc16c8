"""What a publisher says of itself."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

State: TypeAlias = Literal["connecting", "online", "refused", "closed"]


class PublisherStats(msgspec.Struct, frozen=True):
    """What happened to results so far.

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
