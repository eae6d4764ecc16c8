"""The device's own messages: online status, state of its cameras, telemetry and answers to commands.

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
from typing import Literal

import msgspec

from edge_sdk.core.errors import one_line
from edge_sdk.messages.schema import CameraState, Identity, Message, MessageKind, StateMessage, StatusMessage, Topics
from edge_sdk.tasks.entry import ModelRef

_EVERY_S = 1.0
_REFUSED_S = 60.0  # until what the broker refused is offered again
_MOST_ANSWERS = 32  # that wait for a broker; a requester does not wait for a hundred either


class _Retained(msgspec.Struct):
    """What stands on one retained topic, and what was published there last on this connection."""

    kind: MessageKind
    payload: bytes = b""
    published: bytes | None = None
    not_before: float = 0.0

    def wait_s(self, now: float) -> float:
        """Return the seconds until it is to be published; infinity where nothing changed."""
        return math.inf if self.payload == self.published else max(0.0, self.not_before - now)


class RetainedPublisher:
    """When one device publishes what it says of itself; written by any thread, taken from by the publisher's."""

    def __init__(self, topics: Topics, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.topics, self._clock_s = topics, clock_s
        self._retained: dict[str, _Retained] = {}  # by topic, in the order of publishing
        self._telemetry: deque[bytes] = deque(maxlen=1)
        self._answers: deque[Message] = deque(maxlen=_MOST_ANSWERS)
        self._lock = threading.Lock()
        self._on_news: Callable[[], None] = lambda: None
        self._is_ending = False

    def attach(self, on_news: Callable[[], None]) -> None:
        """Call a function, which must not block, from any thread when there is something to take."""
        self._on_news = on_news

    def put_telemetry(self, payload: bytes) -> None:
        """Publish this once, in place of an older one that was not yet published."""
        self._telemetry.append(payload)
        self._on_news()

    def send(self, message: Message) -> None:
        """Publish this once; of more than 32 that wait the oldest goes."""
        self._answers.append(message)
        self._on_news()

    def keep(self, kind: MessageKind, topic: str, payload: bytes) -> None:
        """Keep this on a retained topic from now on; an empty payload clears the topic."""
        with self._lock:
            self._retained.setdefault(topic, _Retained(kind)).payload = payload
        self._on_news()

    def repeat(self, topic: str, *, is_refused: bool = False) -> None:
        """Publish once more what stands on a retained topic, where something does; in a minute if that was refused."""
        with self._lock:
            if topic in self._retained:
                self._retained[topic].published = None
                self._retained[topic].not_before = self._clock_s() + _REFUSED_S if is_refused else 0.0
        self._on_news()

    def begin(self) -> None:
        """Publish everything again: there is a new connection, and perhaps another broker."""
        with self._lock:
            for retained in self._retained.values():
                retained.published, retained.not_before = None, 0.0

    def end(self) -> None:
        """Prepare for the offline message: a changed state goes out at once, and `online` is not sent again."""
        self._is_ending = True

    def wait_s(self) -> float:
        """Return the seconds until there is something to publish; infinity where nothing changed."""
        if self._answers or (self._telemetry and not self._is_ending):
            return 0.0
        with self._lock:
            return min((self._retained[topic].wait_s(self._now()) for topic in self._due()), default=math.inf)

    def take(self) -> Message | None:
        """Return what is to be published now: status and state first, then telemetry, answers, what else is kept."""
        with self._lock:
            topic = next((topic for topic in self._due() if self._retained[topic].wait_s(self._now()) <= 0), None)
            if topic is not None:
                retained = self._retained[topic]
                if retained.kind in ("status", "state") or not (self._answers or self._telemetry):
                    retained.published, retained.not_before = retained.payload, self._clock_s() + _EVERY_S
                    return Message(topic, retained.payload, kind=retained.kind)
        if self._telemetry and not self._is_ending:
            return Message(self.topics.of("telemetry"), self._telemetry.popleft(), kind="telemetry")
        return self._answers.popleft() if self._answers else None

    def _now(self) -> float:
        """Return the time, which no longer matters before the offline message."""
        return math.inf if self._is_ending else self._clock_s()

    def _due(self) -> list[str]:
        """Return the topics on which something may be published."""
        if not self._is_ending:
            return list(self._retained)
        status, state = self.topics.of("status"), self.topics.of("state")
        return [status, state] if self._retained[status].published is None else [state]


class CameraEntry(msgspec.Struct):
    """What one stream says of its camera; another stream of that camera gets another entry."""

    camera: str
    model: ModelRef
    state: CameraState


class DeviceState:
    """The cameras and warnings of one device, kept on its retained topics; each camera's thread writes its entry."""

    def __init__(self, identity: Identity, versions: Mapping[str, str], retained: RetainedPublisher) -> None:
        self._header = msgspec.structs.asdict(identity)
        self._versions = dict(versions)
        self.retained = retained
        self._entries: dict[str, CameraEntry] = {}
        self._warnings: dict[str, str] = {}
        self._lock = threading.Lock()
        self._keep_status()
        self._keep_state()

    def join(self, camera: str, model: ModelRef) -> CameraEntry:
        """Add a camera, or have another model answer for it: of its state only that of its source is kept."""
        with self._lock:
            before = self._entries.get(camera)
            kept = CameraState() if before is None else before.state
            state = CameraState(source=kept.source, trouble=kept.trouble, since=kept.since)
            entry = self._entries[camera] = CameraEntry(camera, model, state)
            self._keep_status()
            self._keep_state()
            return entry

    def leave(self, entry: CameraEntry) -> None:
        """Remove a camera, unless another stream has it."""
        with self._lock:
            if self._entries.get(entry.camera) is entry:
                del self._entries[entry.camera]
                self._keep_status()
                self._keep_state()

    def update(self, entry: CameraEntry, **changes: object) -> None:
        """Change attributes of a camera's state."""
        with self._lock:
            state = msgspec.structs.replace(entry.state, **changes)
            if state != entry.state:
                entry.state = state
                self._keep_state()  # the same, where another stream has the camera

    def warn(self, entry: CameraEntry, name: str, line: str) -> None:
        """Set a camera's warning of a name; an empty line takes it back."""
        before, line = entry.state.warnings or {}, one_line(line)
        warnings = {key: value for key, value in {**before, name: line}.items() if value}
        self.update(entry, warnings=warnings or msgspec.UNSET)

    def warn_of_device(self, name: str, line: str) -> bool:
        """Set a warning of the device itself, as `warn` does a camera's; return whether that is news."""
        line = one_line(line)
        with self._lock:
            if self._warnings.get(name, "") == line:
                return False
            self._warnings[name] = line
            if not line:
                del self._warnings[name]
            self._keep_state()
            return True

    def offline(self, reason: Literal["shutdown", "lost"]) -> bytes:
        """Return the status of being offline, JSON."""
        return msgspec.json.encode(StatusMessage(**self._header, status="offline", reason=reason))

    def online(self) -> bytes:
        """Return the status of being online, JSON."""
        cameras = {entry.camera: entry.model for entry in list(self._entries.values())}
        versions = self._versions or msgspec.UNSET
        return msgspec.json.encode(StatusMessage(**self._header, status="online", versions=versions, cameras=cameras))

    def state(self) -> bytes:
        """Return how the device and each camera does, JSON."""
        cameras = {entry.camera: entry.state for entry in list(self._entries.values())}
        warnings = dict(self._warnings) or msgspec.UNSET
        return msgspec.json.encode(StateMessage(**self._header, cameras=cameras, warnings=warnings))

    def _keep_status(self) -> None:
        self.retained.keep("status", self.retained.topics.of("status"), self.online())

    def _keep_state(self) -> None:
        self.retained.keep("state", self.retained.topics.of("state"), self.state())
