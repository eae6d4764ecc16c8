"""Topics: where a device's messages go, and which names may be part of one.

Owns the checks of every name, so that nothing else needs to know what MQTT allows.
"""

from __future__ import annotations

import os

import msgspec

from edge_sdk.core.errors import UsageError

_NAME_LIMIT = 100  # characters: four names stay far below MQTT's 65535 bytes, and fit what brokers in the cloud allow
_RESERVED = frozenset("/+#$")


class Topics(msgspec.Struct, frozen=True):
    """The topics of one device: PREFIX/SITE/DEVICE/...

    Attributes:
        prefix: one or more levels, `edge/v1` by default.
        site: one level: where the device stands.
        device: one level: its name.

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
        """What all topics of the device begin with; a slash is its end."""
        return self._of("")

    @property
    def status(self) -> str:
        """Where it is retained whether the device is online."""
        return self._of("status")

    @property
    def state(self) -> str:
        """Where it is retained how its cameras do."""
        return self._of("state")

    @property
    def telemetry(self) -> str:
        """Where its health goes."""
        return self._of("telemetry")

    @property
    def command(self) -> str:
        """Where it is told what to do."""
        return self._of("cmd")

    @property
    def response(self) -> str:
        """Where it answers, and below which its requesters may want the answer."""
        return self._of("res")

    def seen(self, camera: str) -> str:
        """Where it is retained how many objects a camera sees."""
        return self._of_camera("seen", camera)

    def result(self, camera: str) -> str:
        """Where the results of one camera go.

        Raises:
            UsageError: the camera's name cannot be part of a topic.
        """
        return self._of_camera("result", camera)

    def event(self, camera: str) -> str:
        """Where the events of one camera go; raises as `result`."""
        return self._of_camera("event", camera)

    def snapshot(self, camera: str) -> str:
        """Where pictures of one camera go; raises as `result`."""
        return self._of_camera("snapshot", camera)

    def _of_camera(self, stream: str, camera: str) -> str:
        check_name("camera", camera)
        return self._of(f"{stream}/{camera}")

    def _of(self, stream: str) -> str:
        return f"{self.prefix}/{self.site}/{self.device}/{stream}"


def check_name(what: str, name: str) -> None:
    """Refuse a name that cannot be one level of a topic.

    Args:
        what: what to call it in the error.
        name: one level.

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
    """This machine's host name, with what a topic may not have replaced by a hyphen."""
    return as_name(os.uname().nodename)


def as_name(text: str) -> str:
    """Make any text a name that `check_name` takes."""
    allowed = ("-" if c in _RESERVED or not c.isprintable() else c for c in text)
    return "".join(allowed)[:_NAME_LIMIT].strip() or "device"
