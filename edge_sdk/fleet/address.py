"""Address: whose message a topic says that it is."""

from __future__ import annotations

from typing import NamedTuple

from edge_sdk.publishing import check_name

_OF_CAMERAS = frozenset({"result", "event", "snapshot", "seen"})
_OF_DEVICES = frozenset({"status", "state", "telemetry", "cmd", "res"})
_NOT_TOLD = frozenset({"seen", "cmd", "res"})  # a result says more, and the others are no news of a device


class Address(NamedTuple):
    """PREFIX/SITE/DEVICE/KIND or PREFIX/SITE/DEVICE/KIND/CAMERA; camera is empty for what is the device's own."""

    site: str
    device: str
    kind: str
    camera: str = ""

    @classmethod
    def of(cls, topic: str, prefix: str) -> Address | None:
        """Read a topic; None where no device publishes there."""
        if not topic.startswith(f"{prefix}/"):
            return None
        levels = topic[len(prefix) + 1 :].split("/")
        if len(levels) == 3 and levels[2] in _OF_DEVICES and all(levels):
            return cls(*levels)
        if len(levels) == 4 and levels[2] in _OF_CAMERAS and all(levels):
            return cls(*levels)
        if len(levels) > 3 and levels[2] == "res" and all(levels[:3]):
            return cls(*levels[:3])  # what is below is its asker's
        return None

    @property
    def is_told(self) -> bool:
        """Whether people are told what a message of this kind says."""
        return self.kind not in _NOT_TOLD


def filters(prefix: str, site: str | None, device: str | None) -> list[str]:
    """What to subscribe to: a fleet, one site of it, or one device.

    Raises:
        UsageError: a name that cannot be a level of a topic.
    """
    for level in prefix.split("/"):
        check_name("topic prefix", level)
    for what, name in (("site", site), ("device", device)):
        if name is not None:
            check_name(what, name)
    return [f"{prefix}/{site or '+'}/{device or '+'}/#"]
