"""Differences: what of a configuration is another than before, in words, beside the cameras themselves."""

from __future__ import annotations

from collections.abc import Iterator

from edge_sdk.daemon.outlet import topics_of
from edge_sdk.daemon.settings import RunSettings


def outlet_words(before: RunSettings, after: RunSettings) -> list[str]:
    """What all streams change for; nothing where they need not."""
    pairs = (
        ("device's name", before.device, after.device),
        ("broker, or how it is used", before.mqtt, after.mqtt),
        ("outbox", before.outbox, after.outbox),
        ("topics that are listened to", topics_of(before), topics_of(after)),
    )
    return [f"other {what}" for what, old, new in pairs if old != new]


def other_words(before: RunSettings, after: RunSettings) -> Iterator[str]:
    """What changes while all streams go on."""
    if before.commands != after.commands:
        yield f"commands: {', '.join(after.commands) or 'none'}"
    if before.home_assistant != after.home_assistant:
        home = after.home_assistant
        yield "Home Assistant: " + ("not told of this device" if home is None or not home.is_enabled else "told anew")
