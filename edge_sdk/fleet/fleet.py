"""Fleet: all devices that were heard of, and which of what they say is news.

Owns the bounds: whoever may publish below the prefix can claim to be any number of devices.
"""

from __future__ import annotations

from datetime import datetime

from edge_sdk.fleet.address import Address
from edge_sdk.fleet.device import LONGEST_NAME, CameraView, DeviceView
from edge_sdk.fleet.reading import EventNote, Message, Removed, Snapshot, Unread
from edge_sdk.fleet.text import plain
from edge_sdk.fleet.words import event_words, result_labels, result_words
from edge_sdk.publishing import (
    ClassificationMessage,
    DetectionMessage,
    SegmentationMessage,
    StateMessage,
    StatusMessage,
)

MOST_DEVICES = 1000
"""More are counted, and not shown."""

_RESULT_EVERY_S = 1.0  # a line of one camera at most


class Fleet:
    """What was heard.

    Attributes:
        devices: by site and name.
        left_out: messages of devices and cameras beyond the bounds: too many, or names too long.
        unread: messages that say nothing.
        lost: messages that came while nobody took them, as far as that is known.
    """

    def __init__(self) -> None:
        self.devices: dict[tuple[str, str], DeviceView] = {}
        self.left_out = self.unread = self.lost = 0

    def take(self, address: Address, message: Message, now: datetime, *, is_retained: bool) -> list[str]:
        """One message more.

        Args:
            address: whose it is.
            message: what it says.
            now: when it came, with a time zone.
            is_retained: whether it waited at the broker.

        Returns:
            Lines for people: what of it is news.
        """
        device = self._device(address)
        if device is None:
            self.left_out += 1
            return []
        if isinstance(message, Removed):
            return self._removed(address, device)
        if isinstance(message, Unread):
            self.unread += 1
            # Garbage makes no camera: it would take the place of a real one.
            camera = device.cameras.get(address.camera)
            why = plain(message.why)
            return _news(device, camera, "unread", why, f"{address.kind} cannot be read: {why}")
        if isinstance(message, StatusMessage):
            device.takes_status(message, now, is_retained=is_retained)
            said = (device.status, device.reason, plain(message.run_id, 40))
            news = _news(device, None, "status", said, status_line(device))
            # Of what waited at the broker either may come first; a live birth is followed by a state of its own.
            return news + (_state_news(device) if is_retained and device.status == "online" else [])
        if isinstance(message, StateMessage):
            device.takes_state(message)
            # How things stood when a device that is gone spoke last is no news.
            is_news = device.status == "online" or (device.status == "unknown" and not is_retained)
            return _state_news(device) if is_news else []
        if isinstance(message, DetectionMessage | ClassificationMessage | SegmentationMessage | EventNote | Snapshot):
            return self._of_camera(address, device, message, now)
        device.takes_telemetry(message)
        throttled = ", ".join(device.throttled)
        return _news(device, None, "throttled", throttled, f"held back: {throttled}" if throttled else "", first="")

    def _removed(self, address: Address, device: DeviceView) -> list[str]:
        """A device whose status is no more retained was taken away by somebody."""
        if address.kind != "status":
            return []
        del self.devices[address.site, address.device]
        return [f"{device.name}: removed, its status is no more at the broker"]

    def _device(self, address: Address) -> DeviceView | None:
        key = (address.site, address.device)
        if key not in self.devices and (len(self.devices) >= MOST_DEVICES or max(map(len, key)) > LONGEST_NAME):
            return None
        return self.devices.setdefault(key, DeviceView(*key))

    def _of_camera(self, address: Address, device: DeviceView, message: Message, now: datetime) -> list[str]:
        camera = device.camera(address.camera)
        if camera is None:
            self.left_out += 1
            return []
        where = f"{device.name}/{camera.name}"
        if isinstance(message, EventNote):
            if not camera.is_new(message.seq):
                return []
            camera.note = event_words(message, now)
            return [f"{where}: event: {camera.note}"]
        if isinstance(message, Snapshot):
            camera.note = f"snapshot of {message.size / 1000:.0f} kB"
            return [f"{where}: {camera.note}"]
        if not isinstance(message, DetectionMessage | ClassificationMessage | SegmentationMessage):
            return []
        variant = message.model.variant if isinstance(message.model.variant, str) else ""
        words = result_words(message)
        camera.saw(words, message.age_ms, plain(variant, 40), now)
        if camera.told_at is not None and (now - camera.told_at).total_seconds() < _RESULT_EVERY_S:
            return []
        news = _news(device, camera, "result", result_labels(message), words)
        if news:
            camera.told_at = now
        return news


def _state_news(device: DeviceView) -> list[str]:
    lines = _news(device, None, "warnings", tuple(device.warnings), _warned(device.warnings), first=())
    for camera in device.cameras.values():
        trouble = f" ({camera.trouble})" if camera.trouble else ""
        source = camera.source or "unknown"
        stands, line = (source, camera.trouble), f"source {source}{trouble}"
        lines += _news(device, camera, "source", stands, line, first=("unknown", ""))
        paused = "paused" if camera.is_paused else "no more paused"
        lines += _news(device, camera, "paused", camera.is_paused, paused, first=False)
        lines += _news(device, camera, "warnings", tuple(camera.warnings), _warned(camera.warnings), first=())
    return lines


def _news(
    device: DeviceView, camera: CameraView | None, what: str, said: object, line: str, *, first: object = None
) -> list[str]:
    """A line where something of a device, or of its camera, differs from what was said before, or from `first`."""
    before = device.said if camera is None else camera.said
    if before.get(what, first) == said:
        return []
    before[what] = said
    where = device.name if camera is None else f"{device.name}/{camera.name}"
    return [f"{where}: {line or 'all is well again'}"]


def status_line(device: DeviceView) -> str:
    """Whether it is there, and with what."""
    if device.status == "offline":
        return "offline" + (f" ({device.reason})" if device.reason else "")
    found = sorted(device.cameras.values(), key=lambda camera: camera.name)
    cameras = ", ".join(f"{camera.name}: {camera.model or '?'}" for camera in found)
    return f"online, {cameras or 'no cameras'}" + (f"; {device.versions}" if device.versions else "")


def _warned(warnings: list[str]) -> str:
    return f"warning: {'; '.join(warnings)}" if warnings else ""
