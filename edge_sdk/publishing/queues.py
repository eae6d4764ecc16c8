"""Queues: what the cameras' streams have put, each kind at its pace: events, results, snapshots.

Owns the pace of results and snapshots, and which goes first. How much of a kind may wait is its outbox's matter, and
the pace of events, which are held whether or not there is a connection, is theirs.

Outbox: messages that wait for the broker, bounded, the newest kept, no camera at another's cost.

Owns the bounds and the counting of what overflowed, and knows nothing of MQTT. `put` is called by the cameras' loops,
the rest by the thread that publishes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from edge_sdk.core.threads import RateLimiter
from edge_sdk.messages.schema import CameraKind, Channel, Message
from edge_sdk.outbox.event import Encode
from edge_sdk.outbox.outbox import EventOutbox


class Waiting(NamedTuple):
    """Of one camera: messages that were put, that wait, and that were dropped."""

    put: int
    queued: int
    dropped: int


class _Lane:
    """What waits of one camera."""

    __slots__ = ("bytes", "dropped_count", "messages", "put_count")

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.bytes = self.put_count = self.dropped_count = 0


class MemoryOutbox:
    """An outbox that ends with the process.

    One camera alone may fill it. When it is full, the oldest message of the camera that has most in it makes room, so
    that one with no more than its share (a bound over the number of cameras) never loses any to another. Cameras are
    served in turn, each in its own order.

    Args:
        max_messages: how many wait at most.
        max_bytes: how many bytes of payload wait at most.
    """

    def __init__(self, max_messages: int = 1000, max_bytes: int = 4_000_000) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._lanes: dict[str, _Lane] = {}
        self._turns: deque[_Lane] = deque()  # those with something in them, the next one first
        self._count = self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    @property
    def waiting_bytes(self) -> int:
        """Payload bytes that wait."""
        return self._bytes

    @property
    def put_count(self) -> int:
        """How many were put, of all cameras."""
        with self._lock:
            return sum(lane.put_count for lane in self._lanes.values())

    @property
    def dropped_count(self) -> int:
        """How many were dropped, of all cameras."""
        with self._lock:
            return sum(lane.dropped_count for lane in self._lanes.values())

    def of_camera(self, camera: str) -> Waiting:
        """The counts of one camera."""
        with self._lock:
            lane = self._lanes.get(camera)
            return Waiting(lane.put_count, len(lane.messages), lane.dropped_count) if lane else Waiting(0, 0, 0)

    def put(self, message: Message) -> None:
        """Append one message; the oldest of the camera that has most make room for it, and are counted."""
        with self._lock:
            self._append(message)

    def offer(self, message: Message) -> bool:
        """Append one message unless another had to make room for it; one above all bounds never waits for room.

        Returns:
            Whether it was appended.
        """
        with self._lock:
            fits = self._count < self._max_messages and self._bytes + len(message.payload) <= self._max_bytes
            if self._count and not fits:
                return False
            self._append(message)
            return True

    def take(self) -> Message | None:
        """The oldest message of the camera whose turn it is, which is the caller's from now on, or None."""
        with self._lock:
            if not self._turns:
                return None
            lane = self._turns[0]
            message = self._pop(lane)
            if not lane.messages:
                self._turns.popleft()
            elif len(self._turns) > 1:
                self._turns.rotate(-1)
            return message

    def give_back(self, messages: Sequence[Message]) -> None:
        """Put messages that were taken, and did not arrive, before their cameras' others; as far as there is room.

        Args:
            messages: oldest first.
        """
        with self._lock:
            for message in reversed(messages):
                lane = self._lane_of(message.camera)
                lane.messages.appendleft(message)
                lane.bytes += len(message.payload)
                self._count += 1
                self._bytes += len(message.payload)
            self._shrink()

    def _append(self, message: Message) -> None:
        lane, size = self._lane_of(message.camera), len(message.payload)
        lane.messages.append(message)
        lane.bytes += size
        lane.put_count += 1
        self._count += 1
        self._bytes += size
        if self._count > self._max_messages or self._bytes > self._max_bytes:
            self._shrink()

    def _lane_of(self, camera: str) -> _Lane:
        """Of a camera; something is about to be in it."""
        lane = self._lanes.get(camera)
        if lane is None:
            lane = self._lanes[camera] = _Lane()
        if not lane.messages:
            self._turns.append(lane)
        return lane

    def _pop(self, lane: _Lane) -> Message:
        message = lane.messages.popleft()
        size = len(message.payload)
        lane.bytes -= size
        self._count -= 1
        self._bytes -= size
        return message

    def _shrink(self) -> None:
        while self._count > self._max_messages or self._bytes > self._max_bytes:
            if self._count > self._max_messages:
                fullest = max(self._turns, key=lambda lane: len(lane.messages))
            else:
                fullest = max(self._turns, key=lambda lane: lane.bytes)
            self._pop(fullest)
            fullest.dropped_count += 1
            if not fullest.messages:
                self._turns.remove(fullest)


_MOST_SNAPSHOTS = 16
_SNAPSHOT_BYTES = 4_000_000


class Queues:
    """Of all cameras; filled by their threads, emptied by the one that publishes.

    Args:
        results: where results wait.
        events: where events go.
        channels: how each kind travels.
    """

    def __init__(self, results: MemoryOutbox, events: EventOutbox, channels: dict[CameraKind, Channel]) -> None:
        self._events = events
        self._outboxes: dict[CameraKind, MemoryOutbox] = {  # in the order in which they are served
            "result": results,
            "snapshot": MemoryOutbox(_MOST_SNAPSHOTS, _SNAPSHOT_BYTES),
        }
        self._paces: dict[CameraKind, RateLimiter[Message, None]] = {
            kind: RateLimiter(channels[kind].max_per_s, outbox.put) for kind, outbox in self._outboxes.items()
        }
        self._latest: CameraKind = "snapshot"
        events.limit(channels["event"].max_per_s)

    def __len__(self) -> int:
        """Results and snapshots that wait."""
        return sum(map(len, self._outboxes.values()))

    def put(self, message: Message) -> None:
        """Append one message of a camera, or hold it until its time has come."""
        self._paces[message.kind].put(message.camera, message)

    def put_at_once(self, message: Message) -> None:
        """Append one message of a camera, whatever its rate: somebody asked for it."""
        self._outboxes[message.kind].put(message)

    def put_event(self, topic: str, camera: str, encode: Encode) -> int | None:
        """The same of an event; see `EventOutbox.put`."""
        return self._events.put(topic, camera, encode)

    def take(self, *, in_turn: bool = False) -> Message | None:
        """The result or snapshot that goes out next, which is the caller's from now on, or None.

        Args:
            in_turn: no kind waits for all of another.
        """
        for pace in self._paces.values():
            pace.release()
        kinds = list(self._outboxes)
        if in_turn and self._latest == kinds[0]:
            kinds.reverse()
        for kind in kinds:
            message = self._outboxes[kind].take()
            if message is not None:
                self._latest = kind
                return message
        return None

    def give_back(self, messages: Iterable[Message]) -> None:
        """Put messages that were taken, and did not arrive, before the others of their kind; oldest first."""
        returned = list(messages)
        for kind, outbox in self._outboxes.items():
            outbox.give_back([message for message in returned if message.kind == kind])

    def end(self) -> None:
        """Nothing is held any longer."""
        for pace in self._paces.values():
            pace.release(all_of_them=True)
        self._events.release_held()

    def wait_s(self) -> float:
        """Seconds until something that is held is due; infinity where nothing is."""
        return min(pace.wait_s() for pace in self._paces.values())

    def of_camera(self, camera: str) -> Waiting:
        """The counts of one camera's results."""
        return self._outboxes["result"].of_camera(camera)

    @property
    def dropped_snapshots(self) -> int:
        """How many pictures of all cameras made room for newer ones."""
        return self._outboxes["snapshot"].dropped_count

    def has_of(self, camera: str) -> bool:
        """Whether anything of a camera waits."""
        return any(outbox.of_camera(camera).queued for outbox in self._outboxes.values())

    def limited(self, camera: str | None = None) -> int:
        """How many results were left out for their rate, of one camera or of all."""
        return self._paces["result"].limited(camera)
