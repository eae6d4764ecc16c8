"""Board: what a device says of itself beside results: that it is online, its cameras, and how each does.

Owns the content of its status and state, and no time: when they are published is `Notices`' matter.

Notices: when a device says what it has to say beside results: status and state on change, telemetry as it comes.

Owns the pace. What is retained goes out at once after every connection, then on change: the first of a burst at once,
the rest of it together after a second, the last one always.

Post: single messages beside results: answers once, and what is retained for those who come later.

Owns the pace of what is kept: of one topic the first word at once, what changes within a second together, the last one
always; and all of it again after every connection.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timezone
from typing import Literal

import msgspec

from edge_sdk.core.errors import one_line
from edge_sdk.messages.schema import (
    CameraState,
    ControlState,
    Identity,
    Kind,
    Message,
    ModelRef,
    Running,
    SourceState,
    StateMessage,
    StatusMessage,
)
from edge_sdk.messages.topics import Topics


class CameraEntry:
    """One stream's line on the board; another stream of that camera gets another."""

    __slots__ = ("camera", "is_leaving", "model", "state")

    def __init__(self, camera: str, model: ModelRef, state: CameraState) -> None:
        self.camera, self.model, self.state = camera, model, state
        self.is_leaving = False


class DeviceState:
    """The cameras of one device; each is written to by its own thread, and all are read by the publisher's.

    Args:
        identity: who speaks.
        versions: of the software, by name.

    Attributes:
        models: grows with every change of the status.
        states: grows with every change of the state.
    """

    def __init__(self, identity: Identity, versions: Mapping[str, str]) -> None:
        self._identity, self._versions = identity, dict(versions)
        self._entries: dict[str, CameraEntry] = {}
        self._warnings: dict[str, str] = {}
        self._lock = threading.Lock()
        self._has_leavers = False
        self.models = self.states = 0

    def join(self, camera: str, model: ModelRef) -> CameraEntry:
        """Add a camera, or have another model answer for it: of its state only where its source stands is kept."""
        with self._lock:
            before = self._entries.get(camera)
            kept = before.state if before is not None and not before.is_leaving else CameraState()
            state = CameraState(source=kept.source, trouble=kept.trouble, since=kept.since)
            entry = self._entries[camera] = CameraEntry(camera, model, state)
            self.models += 1
            self.states += 1
            return entry

    def leave(self, entry: CameraEntry) -> None:
        """The camera goes, as soon as `release` lets it."""
        with self._lock:
            entry.is_leaving = self._has_leavers = True

    def release(self, is_done: Callable[[str], bool]) -> None:
        """Take those cameras down that leave and are done."""
        if not self._has_leavers:
            return
        with self._lock:
            gone = [e.camera for e in self._entries.values() if e.is_leaving and is_done(e.camera)]
            for camera in gone:
                del self._entries[camera]
            self._has_leavers = any(e.is_leaving for e in self._entries.values())
            if gone:
                self.models += 1
                self.states += 1

    def source(self, entry: CameraEntry, source: SourceState) -> bool:
        """Say where a camera's source stands; True where that is news."""
        trouble = source.trouble or msgspec.UNSET
        return self._change(entry, source=source.status, trouble=trouble, since=source.since.astimezone(timezone.utc))

    def running(self, entry: CameraEntry, running: Running) -> bool:
        """Say what runs; True where that is news."""
        return self._change(entry, running=running)

    def controls(self, entry: CameraEntry, controls: ControlState) -> bool:
        """Say what commands have set; True where that is news."""
        return self._change(entry, controls=controls)

    def warn(self, entry: CameraEntry, name: str, line: str) -> bool:
        """Add a warning in place of an older one of that name, or take it back with an empty line; True for news."""
        before, line = entry.state.warnings or {}, one_line(line)
        warnings = {key: value for key, value in {**before, name: line}.items() if value}
        return self._change(entry, warnings=warnings or msgspec.UNSET)

    def warn_of_device(self, name: str, line: str) -> bool:
        """The same of the device itself."""
        line = one_line(line)
        with self._lock:
            if self._warnings.get(name, "") == line:
                return False
            self._warnings[name] = line
            if not line:
                del self._warnings[name]
            self.states += 1
            return True

    def online(self) -> bytes:
        """The status of being online, JSON."""
        with self._lock:
            cameras = {entry.camera: entry.model for entry in self._entries.values()}
        return msgspec.json.encode(
            StatusMessage(
                **msgspec.structs.asdict(self._identity),
                status="online",
                versions=self._versions or msgspec.UNSET,
                cameras=cameras,
            )
        )

    def offline(self, reason: Literal["shutdown", "lost"]) -> bytes:
        """The status of being offline, JSON."""
        return msgspec.json.encode(
            StatusMessage(**msgspec.structs.asdict(self._identity), status="offline", reason=reason)
        )

    def state(self) -> bytes:
        """How the device and each camera does, JSON."""
        with self._lock:
            cameras = {entry.camera: entry.state for entry in self._entries.values()}
            warnings = dict(self._warnings) or msgspec.UNSET
        identity = msgspec.structs.asdict(self._identity)
        return msgspec.json.encode(StateMessage(**identity, cameras=cameras, warnings=warnings))

    def _change(self, entry: CameraEntry, **changes: object) -> bool:
        with self._lock:
            state = msgspec.structs.replace(entry.state, **changes)
            if state == entry.state:
                return False
            entry.state = state
            if self._entries.get(entry.camera) is not entry:
                return False  # another stream has the camera
            self.states += 1
            return True


REFUSED_S = 60.0
"""Until what the broker refused is offered again."""

_EVERY_S = 1.0
_MOST_ONCE = 32  # answers that wait for a broker; a requester does not wait for a hundred either


class _Kept:
    """What stands on one retained topic."""

    __slots__ = ("kind", "not_before", "payload")

    def __init__(self, kind: Kind, payload: bytes) -> None:
        self.kind, self.payload, self.not_before = kind, payload, 0.0


class OneOffMessages:
    """Written from any thread, taken from by the publisher's.

    Args:
        clock_s: monotonic seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._kept: dict[str, _Kept] = {}
        self._unsaid: dict[str, None] = {}  # topics of those that are to be said, in that order
        self._once: deque[tuple[Kind, Message]] = deque(maxlen=_MOST_ONCE)
        self._lock = threading.Lock()

    def send(self, kind: Kind, message: Message) -> None:
        """Have this published once; of more than 32 that wait the oldest goes."""
        self._once.append((kind, message))

    def keep(self, kind: Kind, topic: str, payload: bytes) -> None:
        """Have this stand on a topic from now on; without a byte nothing stands there any more."""
        with self._lock:
            kept = self._kept.get(topic)
            if kept is None:
                kept = self._kept[topic] = _Kept(kind, payload)
            elif kept.payload == payload:
                return
            kept.payload = payload
            self._unsaid[topic] = None

    def repeat(self, topic: str) -> None:
        """Say once more what stands there."""
        with self._lock:
            if topic in self._kept:
                self._unsaid[topic] = None

    def repeat_later(self, topic: str) -> None:
        """The same in a minute, where something is kept there: the broker refused it."""
        with self._lock:
            kept = self._kept.get(topic)
            if kept is not None:
                kept.not_before = self._clock_s() + REFUSED_S
                self._unsaid[topic] = None

    def begin(self) -> None:
        """There is a new connection: whoever is there now knows nothing."""
        with self._lock:
            for topic, kept in self._kept.items():
                kept.not_before = 0.0
                self._unsaid[topic] = None

    @property
    def has_news(self) -> bool:
        """Whether anything is to be said, now or soon."""
        return bool(self._once) or bool(self._unsaid)

    @property
    def has_answers(self) -> bool:
        """Whether something that is said once waits."""
        return bool(self._once)

    def wait_s(self, now: float) -> float:
        """Seconds until there is something to say; infinity when nothing is known."""
        if self._once:
            return 0.0
        with self._lock:
            due = min((self._kept[topic].not_before for topic in self._unsaid), default=math.inf)
        return max(0.0, due - now)

    def take(self, now: float) -> tuple[Kind, Message] | None:
        """What is to be said now; None when there is nothing."""
        if self._once:
            return self._once.popleft()
        with self._lock:
            for topic in self._unsaid:
                kept = self._kept[topic]
                if kept.not_before <= now:
                    break
            else:
                return None
            del self._unsaid[topic]
            kept.not_before = now + _EVERY_S
            return kept.kind, Message(topic, kept.payload)

    def now(self) -> float:
        """Of its clock."""
        return self._clock_s()


class _Retained:
    """One retained message, which changes now and then."""

    def __init__(self, kind: Kind, topic: str, version: Callable[[], int], encode: Callable[[], bytes]) -> None:
        self._kind, self.topic, self._version, self._encode = kind, topic, version, encode
        self.said = -1  # the version that was published last on this connection
        self._not_before = 0.0

    def forget(self, not_before: float = 0.0) -> None:
        self.said, self._not_before = -1, not_before

    @property
    def is_unsaid(self) -> bool:
        return self.said < 0

    def wait_s(self, now: float) -> float:
        return math.inf if self._version() == self.said else max(0.0, self._not_before - now)

    def take(self, now: float) -> tuple[Kind, Message]:
        self.said = self._version()  # first: what changes from here on is news again
        self._not_before = now + _EVERY_S
        return self._kind, Message(self.topic, self._encode())


class RetainedPublisher:
    """Of one device.

    Args:
        board: what is said.
        topics: where.
        clock_s: monotonic seconds.

    Attributes:
        post: single messages, which come after status and state.
    """

    def __init__(self, board: DeviceState, topics: Topics, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._board, self._clock_s = board, clock_s
        self._topic = topics.of("telemetry")
        self._status = _Retained("status", topics.status, lambda: board.models, board.online)
        self._state = _Retained("state", topics.state, lambda: board.states, board.state)
        self._telemetry: deque[bytes] = deque(maxlen=1)
        self._is_ending = False
        self.post = OneOffMessages(clock_s)

    def put_telemetry(self, payload: bytes) -> None:
        """Have this published, in place of an older one that was not yet."""
        self._telemetry.append(payload)

    def begin(self) -> None:
        """There is a new connection: whoever is there now knows nothing."""
        self._status.forget()
        self._state.forget()
        self.post.begin()

    def repeat_later(self, topic: str) -> None:
        """Have what is retained there published once more in a minute: the broker refused it."""
        for retained in (self._status, self._state):
            if retained.topic == topic:
                retained.forget(self._clock_s() + REFUSED_S)
        self.post.repeat_later(topic)

    def end(self) -> None:
        """The goodbye comes: what changed goes out at once, and no other word of being online."""
        self._is_ending = True

    @property
    def _has_news(self) -> bool:
        """Asked after every message, and nearly always false."""
        board = self._board
        is_new = board.states != self._state.said or board.models != self._status.said
        return is_new or bool(self._telemetry) or self.post.has_news

    def wait_s(self) -> float:
        """Seconds until there is something to say; infinity when nothing is known."""
        if not self._has_news:
            return math.inf
        if self._is_ending:
            answer_s = 0.0 if self.post.has_answers else math.inf
            return min(answer_s, *(retained.wait_s(math.inf) for retained in self._last()))
        now = self._clock_s()
        if self._telemetry:
            return 0.0
        return min(self._status.wait_s(now), self._state.wait_s(now), self.post.wait_s(now))

    def take(self) -> tuple[Kind, Message] | None:
        """What is to be said now, the status first; None when there is nothing."""
        if not self._has_news:
            return None
        now = self._clock_s()
        for retained in self._last() if self._is_ending else (self._status, self._state):
            if retained.wait_s(math.inf if self._is_ending else now) <= 0:
                return retained.take(now)
        if self._is_ending:
            return self.post.take(now) if self.post.has_answers else None
        if self._telemetry:
            return "telemetry", Message(self._topic, self._telemetry.popleft())
        return self.post.take(now)

    def _last(self) -> tuple[_Retained, ...]:
        """What there is to say before a goodbye, without waiting for its time."""
        return (self._status, self._state) if self._status.is_unsaid else (self._state,)
