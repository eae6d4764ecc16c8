"""What an event outbox says of itself."""

from __future__ import annotations

import msgspec

from edge_sdk.publishing.durable.losses import Losses


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
