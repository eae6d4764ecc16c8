"""What a device says of itself beside results: that it is online, how its cameras do, answers to commands.

`DeviceState` holds the content of the retained status and state messages; each camera's thread writes its own
`CameraEntry`. `RetainedPublisher` decides when something is published: everything retained goes out at once after every
connection, and then on change: the first of a burst at once, the rest of it together after a second, the last one
always. Telemetry and answers are published once. The publisher's thread takes the next message from it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import msgspec

from edge_sdk.core.errors import one_line
from edge_sdk.messages.schema import CameraState, Identity, Message, MessageKind, ModelRef, StateMessage, StatusMessage
from edge_sdk.messages.topics import Topics

_EVERY_S = 1.0
_REFUSED_S = 60.0  # until what the broker refused is offered again
_MOST_ANSWERS = 32  # that wait for a broker; a requester does not wait for a hundred either


class CameraEntry:
    """What one stream says of its camera; another stream of that camera gets another entry."""

    __slots__ = ("camera", "model", "state")

    def __init__(self, camera: str, model: ModelRef, state: CameraState) -> None:
        self.camera, self.model, self.state = camera, model, state


class DeviceState:
    """The cameras and warnings of one device; each camera's thread writes its entry, the publisher's reads them all.

    Its two versions grow with every change of the status, and of the state.
    """

    def __init__(self, identity: Identity, versions: Mapping[str, str]) -> None:
        self._header = msgspec.structs.asdict(identity)
        self._versions = dict(versions)
        self._entries: dict[str, CameraEntry] = {}
        self._warnings: dict[str, str] = {}
        self._lock = threading.Lock()
        self.status_version = self.state_version = 0

    def join(self, camera: str, model: ModelRef) -> CameraEntry:
        """Add a camera, or have another model answer for it: of its state only that of its source is kept."""
        with self._lock:
            before = self._entries.get(camera)
            kept = CameraState() if before is None else before.state
            state = CameraState(source=kept.source, trouble=kept.trouble, since=kept.since)
            entry = self._entries[camera] = CameraEntry(camera, model, state)
            self.status_version += 1
            self.state_version += 1
            return entry

    def leave(self, entry: CameraEntry) -> None:
        """Remove a camera, unless another stream has it."""
        with self._lock:
            if self._entries.get(entry.camera) is entry:
                del self._entries[entry.camera]
                self.status_version += 1
                self.state_version += 1

    def update(self, entry: CameraEntry, **changes: object) -> bool:
        """Change attributes of a camera's state; return whether that is news."""
        with self._lock:
            state = msgspec.structs.replace(entry.state, **changes)
            if state == entry.state:
                return False
            entry.state = state
            if self._entries.get(entry.camera) is not entry:
                return False  # another stream has the camera
            self.state_version += 1
            return True

    def warn(self, entry: CameraEntry, name: str, line: str) -> bool:
        """Set a camera's warning of a name, an empty line takes it back; return whether that is news."""
        before, line = entry.state.warnings or {}, one_line(line)
        warnings = {key: value for key, value in {**before, name: line}.items() if value}
        return self.update(entry, warnings=warnings or msgspec.UNSET)

    def warn_of_device(self, name: str, line: str) -> bool:
        """Set a warning of the device itself, as `warn` does a camera's."""
        line = one_line(line)
        with self._lock:
            if self._warnings.get(name, "") == line:
                return False
            self._warnings[name] = line
            if not line:
                del self._warnings[name]
            self.state_version += 1
            return True

    def online(self) -> bytes:
        """Return the status of being online, JSON."""
        with self._lock:
            cameras = {entry.camera: entry.model for entry in self._entries.values()}
        versions = self._versions or msgspec.UNSET
        return msgspec.json.encode(StatusMessage(**self._header, status="online", versions=versions, cameras=cameras))

    def offline(self, reason: Literal["shutdown", "lost"]) -> bytes:
        """Return the status of being offline, JSON."""
        return msgspec.json.encode(StatusMessage(**self._header, status="offline", reason=reason))

    def state(self) -> bytes:
        """Return how the device and each camera does, JSON."""
        with self._lock:
            cameras = {entry.camera: entry.state for entry in self._entries.values()}
            warnings = dict(self._warnings) or msgspec.UNSET
        return msgspec.json.encode(StateMessage(**self._header, cameras=cameras, warnings=warnings))


class _Retained:
    """One retained topic, and whether the broker has the latest version of what stands there.

    `version` returns something that differs after every change of it; by default that is the message's bytes.
    """

    def __init__(
        self, kind: MessageKind, topic: str, encode: Callable[[], bytes], version: Callable[[], object] | None = None
    ) -> None:
        self._kind, self._topic, self._encode, self._version = kind, topic, encode, version or encode
        self._published: object = None  # the version that was published last on this connection
        self._not_before = 0.0

    def publish_again(self, not_before: float = 0.0) -> None:
        """Publish it once more, at a time."""
        self._published, self._not_before = None, not_before

    @property
    def is_unpublished(self) -> bool:
        """Whether nothing was published on this connection."""
        return self._published is None

    def wait_s(self, now: float) -> float:
        """Return the seconds until it is to be published; infinity where nothing changed."""
        return math.inf if self._version() == self._published else max(0.0, self._not_before - now)

    def take(self, now: float) -> tuple[MessageKind, Message]:
        """Return the message, which is published now."""
        self._published = self._version()  # first: what changes from here on is news again
        self._not_before = now + _EVERY_S
        return self._kind, Message(self._topic, self._encode())


class RetainedPublisher:
    """When one device publishes what it says of itself; written by any thread, taken from by the publisher's."""

    def __init__(self, state: DeviceState, topics: Topics, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._telemetry_topic = topics.of("telemetry")
        self._status = _Retained("status", topics.status, state.online, lambda: state.status_version)
        self._state = _Retained("state", topics.state, state.state, lambda: state.state_version)
        self._retained = {topics.status: self._status, topics.state: self._state}  # in the order of publishing
        self._payloads: dict[str, bytes] = {}  # of the others
        self._telemetry: deque[bytes] = deque(maxlen=1)
        self._answers: deque[tuple[MessageKind, Message]] = deque(maxlen=_MOST_ANSWERS)
        self._lock = threading.Lock()
        self._is_ending = False

    def put_telemetry(self, payload: bytes) -> None:
        """Publish this once, in place of an older one that was not yet published."""
        self._telemetry.append(payload)

    def send(self, kind: MessageKind, message: Message) -> None:
        """Publish this once; of more than 32 that wait the oldest goes."""
        self._answers.append((kind, message))

    def keep(self, kind: MessageKind, topic: str, payload: bytes) -> None:
        """Keep this on a retained topic from now on; an empty payload clears the topic."""
        with self._lock:
            self._payloads[topic] = payload
            if topic not in self._retained:
                self._retained[topic] = _Retained(kind, topic, partial(self._payloads.__getitem__, topic))

    def repeat(self, topic: str) -> None:
        """Publish once more what stands on a retained topic, where something does."""
        with self._lock:
            if topic in self._retained:
                self._retained[topic].publish_again()

    def repeat_later(self, topic: str) -> None:
        """Do so in a minute, because the broker refused it."""
        with self._lock:
            if topic in self._retained:
                self._retained[topic].publish_again(self._clock_s() + _REFUSED_S)

    def begin(self) -> None:
        """Publish everything again: there is a new connection, and perhaps another broker."""
        with self._lock:
            for retained in self._retained.values():
                retained.publish_again()

    def end(self) -> None:
        """Prepare for the goodbye: a changed state goes out at once, and no other word of being online."""
        self._is_ending = True

    def wait_s(self) -> float:
        """Return the seconds until there is something to publish; infinity where nothing changed."""
        if self._answers or (self._telemetry and not self._is_ending):
            return 0.0
        with self._lock:
            return min((retained.wait_s(self._now()) for retained in self._due()), default=math.inf)

    def take(self) -> tuple[MessageKind, Message] | None:
        """Return what is to be published now: status and state first, then telemetry, answers, what else is kept."""
        with self._lock:
            due = next((retained for retained in self._due() if retained.wait_s(self._now()) <= 0), None)
            is_of_device = due in (self._status, self._state)
            if due is not None and (is_of_device or not (self._answers or self._telemetry)):
                return due.take(self._clock_s())
        if self._telemetry and not self._is_ending:
            return "telemetry", Message(self._telemetry_topic, self._telemetry.popleft())
        return self._answers.popleft() if self._answers else None

    def _now(self) -> float:
        """Return the time, which no longer matters before the goodbye."""
        return math.inf if self._is_ending else self._clock_s()

    def _due(self) -> list[_Retained]:
        if not self._is_ending:
            return list(self._retained.values())
        return [self._status, self._state] if self._status.is_unpublished else [self._state]
