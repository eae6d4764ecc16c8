"""Outbox: messages that wait for the broker, bounded, the newest kept, no camera at another's cost.

Owns the bounds and the counting of what overflowed, and knows nothing of MQTT. `put` is called by the cameras' loops,
the rest by the thread that publishes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

CameraKind: TypeAlias = Literal["result", "event", "snapshot"]
"""What there is of a camera."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message.

    Attributes:
        topic: where it goes.
        payload: JSON, or a picture.
        camera: whose it is; the device's own are of none.
        kind: what it is; says nothing of the device's own.
        seq: its number among those of its kind and camera, where it has one.
        correlation: what a requester wants back with an answer.
        is_repeated: whether a broker may have had it before.
    """

    topic: str
    payload: bytes
    camera: str = ""
    kind: CameraKind = "result"
    seq: int | None = None
    correlation: bytes = b""
    is_repeated: bool = False


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
