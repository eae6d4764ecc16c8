"""Channels: how what a device publishes of its cameras travels, each kind in its own way."""

from __future__ import annotations

from typing import Literal

import msgspec

from edge_sdk.errors import UsageError

LONGEST_EXPIRY_S = 2**32 - 1  # MQTT's own
_FASTEST, _SLOWEST = 1000.0, 1e-6


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """Results, or events, or snapshots.

    Attributes:
        qos: 0: the broker may miss some when a connection breaks. 1: acknowledged, perhaps twice.
        expiry_s: seconds after which a broker drops a message that it could not deliver.
        max_per_s: of one camera, messages a second; of what is more the newest is kept. None: no limit.

    Raises:
        UsageError: a number is outside its range.
    """

    qos: Literal[0, 1] = 0
    expiry_s: int = 60
    max_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.qos not in (0, 1):
            raise UsageError(f"qos is {self.qos}, expected 0 or 1")
        if not 1 <= self.expiry_s <= LONGEST_EXPIRY_S:
            raise UsageError(f"expiry_s is {self.expiry_s}, expected 1 to {LONGEST_EXPIRY_S}")
        if self.max_per_s is not None and not _SLOWEST <= self.max_per_s <= _FASTEST:
            raise UsageError(f"max_per_s is {self.max_per_s}, expected {_SLOWEST:g} to {_FASTEST:g}")


EVENTS = Channel(qos=1, expiry_s=7 * 86400)
"""A week: whoever counts by events reads them later rather than never."""

SNAPSHOTS = Channel(expiry_s=3600)
