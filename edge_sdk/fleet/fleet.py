"""Fleet: all devices that were heard of, and which of what they say is news.

Owns the bounds: whoever may publish below the prefix can claim to be any number of devices.

DeviceView and CameraView: what is known of a device and of one of its cameras, from what they said last.

Owns no decision about when to say it, and shows names and texts in plain characters only.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime

from msgspec import UnsetType

from edge_sdk.fleet.messages import (
    Address,
    EventNote,
    Message,
    Removed,
    Snapshot,
    Unread,
    event_words,
    model_words,
    plain,
    result_labels,
    result_words,
)
from edge_sdk.messages.schema import (
    CameraState,
    ClassificationMessage,
    DetectionMessage,
    ModelRef,
    SegmentationMessage,
    StateMessage,
    StatusMessage,
    TelemetryMessage,
)

_RATE_WINDOW = 30  # results
_SILENT_S = 5.0
_EVENTS_KNOWN = 256  # numbers; a connection that breaks has 20 of them under way
MOST_CAMERAS = 64
"""Of one device; a real one has a handful."""

LONGEST_NAME = 100
"""Characters of a site, device or camera; none takes a longer one, and a topic may have 65535."""


class CameraView:
    """One camera.

    Attributes:
        source: where its source stands; empty while nobody said.
        trouble: why it does not deliver.
        since: when the source came to stand there.
        is_paused: whether a command has paused it.
        warnings: what is wrong, each in a line.
        model: what answers for it.
        words: what it saw last.
        note: its latest event or snapshot.
        age_ms: of the latest result, from capture to the device's outbox.
        heard_at: when that came; None before.
        said: what people were told of it last, by subject; it is kept here, so that it goes with the camera.
        told_at: when they were told of a result; None before.
    """

    def __init__(self, name: str) -> None:
        self.name = plain(name, LONGEST_NAME)
        self.source = self.trouble = self.model = self.words = self.note = self.variant = ""
        self.since: datetime | None = None
        self.is_paused = False
        self.warnings: list[str] = []
        self.age_ms: float | None = None
        self.heard_at: datetime | None = None
        self.told_at: datetime | None = None
        self.said: dict[str, object] = {}
        self._times: deque[float] = deque(maxlen=_RATE_WINDOW)
        self._events: deque[int] = deque(maxlen=_EVENTS_KNOWN)

    def is_new(self, seq: int | None) -> bool:
        """Whether an event of this number did not come before: one comes twice where a connection broke."""
        if seq is None:
            return True
        if seq in self._events:
            return False
        self._events.append(seq)
        return True

    def saw(self, words: str, age_ms: float, variant: str, now: datetime) -> None:
        """A result came."""
        self.words, self.age_ms, self.variant, self.heard_at = words, age_ms, variant, now
        self._times.append(now.timestamp())

    def fps(self, now: datetime) -> float | None:
        """Results a second that came of late; None where too few did."""
        times = [time for time in self._times if now.timestamp() - time < _SILENT_S]
        if len(times) < 2 or times[-1] <= times[0]:
            return None
        return (len(times) - 1) / (times[-1] - times[0])

    def stands(self, state: CameraState) -> None:
        """Its device said how it does."""
        self.source = "" if isinstance(state.source, UnsetType) else state.source
        self.trouble = "" if isinstance(state.trouble, UnsetType) else plain(state.trouble)
        self.since = None if isinstance(state.since, UnsetType) else state.since
        self.is_paused = not isinstance(state.controls, UnsetType) and state.controls.paused
        self.warnings = [] if isinstance(state.warnings, UnsetType) else _lines(state.warnings)
        if not isinstance(state.running, UnsetType):
            self.variant = plain(state.running.variant, 40)

    def runs(self, model: ModelRef) -> None:
        """Its device said which model answers for it."""
        self.model = model_words(model)


class DeviceView:
    """One device.

    Attributes:
        status: whether its results are published; `unknown` while nobody said.
        reason: why it is offline.
        since: when that was heard.
        is_since_before: it was so already when listening began.
        versions: of its software.
        warnings: what is wrong with the device itself, each in a line.
        temperature_c, memory_rss_mb, throttled: what telemetry said last.
        cameras: by name.
        said: as of a camera.
    """

    def __init__(self, site: str, name: str) -> None:
        self.name = f"{plain(site, LONGEST_NAME)}/{plain(name, LONGEST_NAME)}"
        self.status, self.reason, self.versions = "unknown", "", ""
        self.since: datetime | None = None
        self.is_since_before = False
        self.warnings: list[str] = []
        self.temperature_c: float | None = None
        self.memory_rss_mb: float | None = None
        self.throttled: list[str] = []
        self.cameras: dict[str, CameraView] = {}
        self.said: dict[str, object] = {}

    def camera(self, name: str) -> CameraView | None:
        """One of its cameras, known or new; None where it claims to have too many, or one of an impossible name."""
        if name not in self.cameras and (len(self.cameras) >= MOST_CAMERAS or len(name) > LONGEST_NAME):
            return None
        return self.cameras.setdefault(name, CameraView(name))

    def takes_status(self, message: StatusMessage, now: datetime, *, is_retained: bool) -> None:
        """It said whether it is there."""
        if message.status != self.status:
            self.since, self.is_since_before = now, is_retained
        self.status = message.status
        self.reason = "" if isinstance(message.reason, UnsetType) else message.reason
        if not isinstance(message.versions, UnsetType):
            self.versions = plain(" ".join(f"{name} {version}" for name, version in message.versions.items()), 80)
        if isinstance(message.cameras, UnsetType):
            return
        self._keep(message.cameras)
        for name, model in message.cameras.items():
            camera = self.camera(name)
            if camera is not None:
                camera.runs(model)

    def takes_state(self, message: StateMessage) -> None:
        """It said how its cameras do."""
        self.warnings = [] if isinstance(message.warnings, UnsetType) else _lines(message.warnings)
        for name, state in message.cameras.items():
            camera = self.camera(name)
            if camera is not None:
                camera.stands(state)

    def takes_telemetry(self, message: TelemetryMessage) -> None:
        """It said how the machine does."""
        self.temperature_c = _number(message.temperature_c)
        self.memory_rss_mb = _number(message.memory_rss_mb)
        self.throttled = (
            [] if isinstance(message.throttled, UnsetType) else [plain(t, 40) for t in message.throttled[:9]]
        )

    def _keep(self, cameras: dict[str, ModelRef]) -> None:
        """Cameras that a device does not name any more are gone."""
        for name in [name for name in self.cameras if name not in cameras]:
            del self.cameras[name]


def _lines(warnings: dict[str, str]) -> list[str]:
    return [f"{plain(name, 40)}: {plain(line)}" for name, line in list(warnings.items())[:9]]


def _number(value: float | UnsetType) -> float | None:
    return None if isinstance(value, UnsetType) else value


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
