"""Topics: where a device's messages go, and which names may be part of a topic.

The table of message kinds (`schema.MESSAGES`) says how a topic ends; every name is checked here, so that nothing else
needs to know what MQTT allows.
"""

from __future__ import annotations

import os

import msgspec

from edge_sdk.core.errors import UsageError
from edge_sdk.messages.schema import MESSAGES, MessageKind

_NAME_LIMIT = 100  # characters: four names stay far below MQTT's 65535 bytes, and fit what brokers in the cloud allow
_RESERVED = frozenset("/+#$")


class Topics(msgspec.Struct, frozen=True):
    """The topics of one device, PREFIX/SITE/DEVICE/...; the prefix has one or more levels.

    Raises:
        UsageError: a name is empty, too long, or has a character that a topic level may not have.
    """

    prefix: str
    site: str
    device: str

    def __post_init__(self) -> None:
        for level in self.prefix.split("/"):
            check_name("topic prefix", level)
        check_name("site", self.site)
        check_name("device", self.device)

    @property
    def own(self) -> str:
        """The prefix of all topics of the device; it ends in a slash."""
        return f"{self.prefix}/{self.site}/{self.device}/"

    @property
    def status(self) -> str:
        """The topic of the retained status: whether the device is online."""
        return self.of("status")

    @property
    def state(self) -> str:
        """The topic of the retained state of the device and its cameras."""
        return self.of("state")

    @property
    def command(self) -> str:
        """The topic on which the device receives commands."""
        return self.of("command")

    @property
    def response(self) -> str:
        """The topic of the answers to commands; a requester may name a topic below it."""
        return self.of("response")

    def of(self, kind: MessageKind, camera: str = "") -> str:
        """Return the topic of one kind of message, but discovery, and of one camera where each has a topic.

        Raises:
            UsageError: the camera's name cannot be part of a topic.
        """
        if MESSAGES[kind].is_of_camera:
            check_name("camera", camera)
        return self.own + MESSAGES[kind].topic.replace("{camera}", camera)


def check_name(what: str, name: str) -> None:
    """Refuse a name that cannot be one level of a topic; `what` is what to call it.

    Raises:
        UsageError: it is empty, too long, has spaces around it, or one of `/ + # $`, or control characters.
    """
    if not name or len(name) > _NAME_LIMIT:
        raise UsageError(f"{what} name has {len(name)} characters, expected 1 to {_NAME_LIMIT}")
    if not name.isprintable() or not _RESERVED.isdisjoint(name) or name != name.strip():
        raise UsageError(
            f"{what} name {name!r} cannot be part of a topic, expected no / + # $ and no control characters"
        )


def default_device() -> str:
    """Return this machine's host name, with what a topic may not have replaced by a hyphen."""
    return as_name(os.uname().nodename)


def as_name(text: str) -> str:
    """Make any text a name that `check_name` takes."""
    allowed = ("-" if c in _RESERVED or not c.isprintable() else c for c in text)
    return "".join(allowed)[:_NAME_LIMIT].strip() or "device"
