"""DeviceView and CameraView: what is known of a device and of one of its cameras, from what they said last.

Owns no decision about when to say it, and shows names and texts in plain characters only.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime

from msgspec import UnsetType

from edge_sdk.fleet.text import plain
from edge_sdk.fleet.words import model_words
from edge_sdk.publishing import CameraState, ModelRef, StateMessage, StatusMessage, TelemetryMessage

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
