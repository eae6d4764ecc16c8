"""HomeAssistantSettings: what Home Assistant is told of a device."""

from __future__ import annotations

import msgspec


class HomeAssistantSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What Home Assistant is told.

    Attributes:
        is_enabled: False takes back what was told before.
        prefix: first level of its own topics.
        labels: that get a count of their own.
    """

    is_enabled: bool = True
    prefix: str = "homeassistant"
    labels: tuple[str, ...] = ()
