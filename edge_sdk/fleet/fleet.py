"""Fleet: the state of all devices that have sent messages, and the lines to print when it changes.

A `DeviceView` and its `CameraView`s hold what is known from the latest messages; names and texts have only printable
characters. `Fleet.take` updates them with a message and returns lines for what has changed. Everything is bounded,
because a program that may publish below the prefix can claim to be any number of devices.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import TypeVar

from msgspec import UnsetType

from edge_sdk.fleet.messages import (
    DeviceAddress,
    DeviceMessage,
    EventNote,
    Removed,
    SnapshotNote,
    Unread,
    event_words,
    model_words,
    plain,
    result_labels,
    result_words,
)
from edge_sdk.messages.schema import CameraState, StateMessage, StatusMessage, TelemetryMessage
from edge_sdk.tasks.entry import ResultMessage

_RATE_WINDOW = 30  # results from which the rate is computed
_SILENT_S = 5.0
_EVENTS_KNOWN = 256  # event numbers that are remembered; a connection that breaks has 20 events in flight
_RESULT_EVERY_S = 1.0  # least time between two result lines of one camera
MOST_DEVICES = 1000
"""The largest number of devices that are shown; further ones are only counted."""

MOST_CAMERAS = 64
"""The largest number of cameras of one device; a real device has a few."""

LONGEST_NAME = 100
"""The largest number of characters of a site, device or camera name; a topic could have 65535."""


class _View:
    """A device or a camera; `where` names it in lines, and `_told` has the last one that was printed, by subject."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.warnings: list[str] = []
        self._told: dict[str, object] = {}

    def news(self, what: str, said: object, line: str, *, first: object = None) -> list[str]:
        """Return a line where a value differs from the last one printed, or else from `first`."""
        if self._told.get(what, first) == said:
            return []
        self._told[what] = said
        return [f"{self.where}: {line or 'all is well again'}"]

    def warned(self) -> list[str]:
        """Return a line where the warnings have changed."""
        line = f"warning: {'; '.join(self.warnings)}" if self.warnings else ""
        return self.news("warnings", tuple(self.warnings), line, first=())


class CameraView(_View):
    """One camera of a device, as its messages describe it.

    Attributes:
        source: state of its source; empty while unknown. `since` is the time of that state, `trouble` the reason why
            the source does not deliver.
        words, note: its latest result, and its latest event or snapshot, in words.
        degraded: the level to which it is degraded, and why; empty at the preferred one.
        age_ms: age of the latest result from capture to the device's outbox, which came at `heard_at`.
        told_at: the time of the last line about a result.
    """

    def __init__(self, device: str, name: str) -> None:
        self.name = plain(name, LONGEST_NAME)
        super().__init__(f"{device}/{self.name}")
        self.source = self.trouble = self.model = self.words = self.note = self.variant = self.degraded = ""
        self.since: datetime | None = None
        self.is_paused = False
        self.age_ms: float | None = None
        self.heard_at: datetime | None = None
        self.told_at: datetime | None = None
        self._times: deque[float] = deque(maxlen=_RATE_WINDOW)
        self._events: deque[int] = deque(maxlen=_EVENTS_KNOWN)

    def is_new(self, seq: int | None) -> bool:
        """Tell whether an event of this number is new; after a broken connection an event may come twice."""
        if seq is None:
            return True
        if seq in self._events:
            return False
        self._events.append(seq)
        return True

    def take_result(self, words: str, age_ms: float, variant: str, now: datetime) -> None:
        """Update the camera with a result."""
        self.words, self.age_ms, self.variant, self.heard_at = words, age_ms, variant, now
        self._times.append(now.timestamp())

    def fps(self, now: datetime) -> float | None:
        """Return the recent rate of results per second; None where too few came."""
        times = [time for time in self._times if now.timestamp() - time < _SILENT_S]
        if len(times) < 2 or times[-1] <= times[0]:
            return None
        return (len(times) - 1) / (times[-1] - times[0])

    def set_state(self, state: CameraState) -> None:
        """Update the camera with its part of the device's state."""
        controls, running = _known(state.controls, None), _known(state.running, None)
        self.source = _known(state.source, "")
        self.trouble = plain(_known(state.trouble, ""))
        self.since = _known(state.since, None)
        self.is_paused = controls is not None and controls.paused
        self.warnings = _lines(state.warnings)
        if running is not None:
            self.variant = plain(running.variant, 40)
            level = f"degraded to level {running.level} of {running.levels - 1}: {plain(running.reason)}"
            self.degraded = level if running.level else ""


class DeviceView(_View):
    """One device, as its messages describe it.

    Attributes:
        status: the published status of the device; `unknown` before the first message about it.
        since: time at which the status was received; with `is_since_before` the device already had it before.
    """

    def __init__(self, site: str, name: str) -> None:
        self.name = f"{plain(site, LONGEST_NAME)}/{plain(name, LONGEST_NAME)}"
        super().__init__(self.name)
        self.status, self.reason, self.versions = "unknown", "", ""
        self.since: datetime | None = None
        self.is_since_before = False
        self.temperature_c: float | None = None
        self.memory_rss_mb: float | None = None
        self.throttled: list[str] = []
        self.cameras: dict[str, CameraView] = {}

    def camera(self, name: str) -> CameraView | None:
        """Return a camera, known or new; None where the device has too many cameras, or the name is too long."""
        if name not in self.cameras and (len(self.cameras) >= MOST_CAMERAS or len(name) > LONGEST_NAME):
            return None
        return self.cameras.setdefault(name, CameraView(self.name, name))

    def take_status(self, message: StatusMessage, now: datetime, *, is_retained: bool) -> None:
        """Update the device with its status and list of cameras."""
        if message.status != self.status:
            self.since, self.is_since_before = now, is_retained
        self.status, self.reason = message.status, _known(message.reason, "")
        if not isinstance(message.versions, UnsetType):
            self.versions = plain(" ".join(f"{name} {version}" for name, version in message.versions.items()), 80)
        if isinstance(message.cameras, UnsetType):
            return
        for name in self.cameras.keys() - message.cameras.keys():  # the device no longer has these
            del self.cameras[name]
        for name, model in message.cameras.items():
            camera = self.camera(name)
            if camera is not None:
                camera.model = model_words(model)

    def take_state(self, message: StateMessage) -> None:
        """Update the device and its cameras with a state message."""
        self.warnings = _lines(message.warnings)
        for name, state in message.cameras.items():
            camera = self.camera(name)
            if camera is not None:
                camera.set_state(state)

    def take_telemetry(self, message: TelemetryMessage) -> None:
        """Update the device with its telemetry."""
        self.temperature_c = _known(message.temperature_c, None)
        self.memory_rss_mb = _known(message.memory_rss_mb, None)
        self.throttled = [plain(each, 40) for each in _known(message.throttled, [])[:9]]


_T = TypeVar("_T")
_D = TypeVar("_D")


def _known(value: _T | UnsetType, default: _D) -> _T | _D:
    return default if isinstance(value, UnsetType) else value


def _lines(warnings: dict[str, str] | UnsetType) -> list[str]:
    return [f"{plain(name, 40)}: {plain(line)}" for name, line in list(_known(warnings, {}).items())[:9]]


class Fleet:
    """All devices that have sent messages.

    Attributes:
        left_out: number of messages of devices and cameras beyond the bounds: too many, or with names too long.
        lost: number of messages that were lost because they were not taken in time, as far as that is known.
    """

    def __init__(self) -> None:
        self.devices: dict[tuple[str, str], DeviceView] = {}
        self.left_out = self.unread = self.lost = 0

    def take(self, address: DeviceAddress, message: DeviceMessage, now: datetime, *, is_retained: bool) -> list[str]:
        """Update the fleet with one message that was received `now`; return lines to print for what has changed."""
        device = self._device(address)
        if device is None:
            self.left_out += 1
            return []
        if isinstance(message, Removed):
            return self._removed(address, device)
        if isinstance(message, Unread):
            self.unread += 1
            # An unreadable message adds no camera, which could take the place of a real one.
            view, why = device.cameras.get(address.camera, device), plain(message.why)
            return view.news("unread", why, f"{address.kind} cannot be read: {why}")
        if isinstance(message, StatusMessage):
            device.take_status(message, now, is_retained=is_retained)
            line = _status_line(device)
            news = device.news("status", (line, plain(message.run_id, 40)), line)
            # Retained status and state come in any order; a status that is published live is followed by a state.
            return news + (_state_news(device) if is_retained and device.status == "online" else [])
        if isinstance(message, StateMessage):
            device.take_state(message)
            # The last state of a device that is offline is not news.
            is_news = device.status == "online" or (device.status == "unknown" and not is_retained)
            return _state_news(device) if is_news else []
        if isinstance(message, TelemetryMessage):
            device.take_telemetry(message)
            throttled = ", ".join(device.throttled)
            return device.news("throttled", throttled, f"held back: {throttled}" if throttled else "", first="")
        return self._of_camera(address, device, message, now)

    def _removed(self, address: DeviceAddress, device: DeviceView) -> list[str]:
        """Remove a device whose retained status was removed at the broker."""
        if address.kind != "status":
            return []
        del self.devices[address.site, address.device]
        return [f"{device.name}: removed, its status is no more at the broker"]

    def _device(self, address: DeviceAddress) -> DeviceView | None:
        key = (address.site, address.device)
        if key not in self.devices and (len(self.devices) >= MOST_DEVICES or max(map(len, key)) > LONGEST_NAME):
            return None
        return self.devices.setdefault(key, DeviceView(*key))

    def _of_camera(
        self,
        address: DeviceAddress,
        device: DeviceView,
        message: ResultMessage | EventNote | SnapshotNote,
        now: datetime,
    ) -> list[str]:
        camera = device.camera(address.camera)
        if camera is None:
            self.left_out += 1
            return []
        if isinstance(message, EventNote):
            if not camera.is_new(message.seq):
                return []
            camera.note = event_words(message, now)
            return [f"{camera.where}: event: {camera.note}"]
        if isinstance(message, SnapshotNote):
            camera.note = f"snapshot of {message.size / 1000:.0f} kB"
            return [f"{camera.where}: {camera.note}"]
        words = result_words(message)
        camera.take_result(words, message.age_ms, plain(_known(message.model.variant, ""), 40), now)
        if camera.told_at is not None and (now - camera.told_at).total_seconds() < _RESULT_EVERY_S:
            return []
        news = camera.news("result", result_labels(message), words)
        if news:
            camera.told_at = now
        return news


def _state_news(device: DeviceView) -> list[str]:
    lines = device.warned()
    for camera in device.cameras.values():
        source, trouble = camera.source or "unknown", f" ({camera.trouble})" if camera.trouble else ""
        lines += camera.news("source", (source, camera.trouble), f"source {source}{trouble}", first=("unknown", ""))
        paused = "paused" if camera.is_paused else "no more paused"
        lines += camera.news("paused", camera.is_paused, paused, first=False)
        lines += camera.news("degraded", camera.degraded, camera.degraded or "no more degraded", first="")
        lines += camera.warned()
    return lines


def _status_line(device: DeviceView) -> str:
    """Return the status of a device in words, with its cameras."""
    if device.status == "offline":
        return "offline" + (f" ({device.reason})" if device.reason else "")
    found = sorted(device.cameras.values(), key=lambda camera: camera.name)
    cameras = ", ".join(f"{camera.name}: {camera.model or '?'}" for camera in found)
    return f"online, {cameras or 'no cameras'}" + (f"; {device.versions}" if device.versions else "")
