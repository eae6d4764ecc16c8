"""What the cameras' streams have put and the broker has not: a queue for each kind of message, and which goes first.

Results and pictures wait in memory, each kind in a `MemoryOutbox` and at its pace (`max_per_s`); events wait in the
`EventOutbox`, which holds their pace itself because it also counts without a connection. Cameras' threads fill the
queues, and the publisher's thread empties them. Nothing here knows MQTT.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from edge_sdk.core.threads import RateLimiter
from edge_sdk.messages.schema import Channel, Message, MessageKind
from edge_sdk.outbox.outbox import EventOutbox


class Waiting(NamedTuple):
    """How many messages of one camera were put, wait, and were dropped."""

    put: int
    queued: int
    dropped: int


class _CameraQueue:
    """The messages of one camera that wait."""

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.bytes = self.put_count = self.dropped_count = 0


class MemoryOutbox:
    """Bounded queue of messages that ends with the process; its methods may be called from any thread.

    One camera alone may fill it. When it is full, the oldest message of the camera that has most in it makes room, so
    that one with no more than its share (a bound over the number of cameras) never loses any to another. Cameras are
    served in turn, each in its own order.
    """

    def __init__(self, max_messages: int = 1000, max_bytes: int = 4_000_000) -> None:
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._cameras: dict[str, _CameraQueue] = {}
        self._turns: deque[_CameraQueue] = deque()  # those with something in them, the next one first
        self._count = self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def counts(self, camera: str | None = None) -> Waiting:
        """Return the counts of one camera, or of all."""
        with self._lock:
            found = list(self._cameras.values()) if camera is None else filter(None, [self._cameras.get(camera)])
            counts = [(queue.put_count, len(queue.messages), queue.dropped_count) for queue in found]
        return Waiting(*map(sum, zip((0, 0, 0), *counts, strict=True)))

    def put(self, message: Message) -> None:
        """Append one message; the oldest of the camera that has most make room for it, and are counted."""
        with self._lock:
            self._append(message)

    def offer(self, message: Message) -> bool:
        """Append one message unless another had to make room for it, and return whether it was appended.

        One above all bounds never waits for room.
        """
        with self._lock:
            fits = self._count < self._max_messages and self._bytes + len(message.payload) <= self._max_bytes
            if self._count and not fits:
                return False
            self._append(message)
            return True

    def take(self) -> Message | None:
        """Take the oldest message of the camera whose turn it is; None where nothing waits."""
        with self._lock:
            if not self._turns:
                return None
            queue = self._turns[0]
            message = self._pop(queue)
            if not queue.messages:
                self._turns.popleft()
            else:
                self._turns.rotate(-1)
            return message

    def give_back(self, messages: Sequence[Message]) -> None:
        """Put back messages that were taken, and did not arrive, oldest first, as far as there is room."""
        with self._lock:
            for message in reversed(messages):
                self._add(message).messages.appendleft(message)
            self._make_room()

    def _append(self, message: Message) -> None:
        queue = self._add(message)
        queue.messages.append(message)
        queue.put_count += 1
        self._make_room()

    def _add(self, message: Message) -> _CameraQueue:
        """Count a message, and return the queue of its camera, to which it is to be added."""
        queue = self._cameras.setdefault(message.camera, _CameraQueue())
        if not queue.messages:
            self._turns.append(queue)
        queue.bytes += len(message.payload)
        self._count += 1
        self._bytes += len(message.payload)
        return queue

    def _pop(self, queue: _CameraQueue) -> Message:
        message = queue.messages.popleft()
        queue.bytes -= len(message.payload)
        self._count -= 1
        self._bytes -= len(message.payload)
        return message

    def _make_room(self) -> None:
        while self._count > self._max_messages or self._bytes > self._max_bytes:
            if self._count > self._max_messages:
                fullest = max(self._turns, key=lambda queue: len(queue.messages))
            else:
                fullest = max(self._turns, key=lambda queue: queue.bytes)
            self._pop(fullest)
            fullest.dropped_count += 1
            if not fullest.messages:
                self._turns.remove(fullest)


_MAX_SNAPSHOTS = 16
_SNAPSHOT_BYTES = 4_000_000


class Queues:
    """The queues of all cameras; filled by their threads, emptied by the one that publishes."""

    def __init__(self, events: EventOutbox, channels: dict[MessageKind, Channel]) -> None:
        self.events = events
        self._outboxes: dict[MessageKind, MemoryOutbox] = {  # in the order in which they are served
            "result": MemoryOutbox(),
            "snapshot": MemoryOutbox(_MAX_SNAPSHOTS, _SNAPSHOT_BYTES),
        }
        self._limiters: dict[MessageKind, RateLimiter[Message, None]] = {
            kind: RateLimiter(channels[kind].max_per_s, outbox.put) for kind, outbox in self._outboxes.items()
        }
        self._latest: MessageKind = "snapshot"
        events.limit(channels["event"].max_per_s)

    def __len__(self) -> int:
        """Count the results and pictures that wait."""
        return sum(map(len, self._outboxes.values()))

    def put(self, message: Message) -> None:
        """Append a result or picture, or hold it until its time has come."""
        self._limiters[message.kind].put(message.camera, message)

    def put_at_once(self, message: Message) -> None:
        """Append a result or picture that a command asked for, without a rate limit."""
        self._outboxes[message.kind].put(message)

    def take(self, *, in_turn: bool = False) -> Message | None:
        """Take the result or picture that goes out next, or None; `in_turn` no kind waits for all of another."""
        for limiter in self._limiters.values():
            limiter.release()
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
        """Hold nothing any longer."""
        for limiter in self._limiters.values():
            limiter.release(all_of_them=True)
        self.events.release_held()

    def wait_s(self) -> float:
        """Return the seconds until something that is held is due; infinity where nothing is."""
        return min(limiter.wait_s() for limiter in self._limiters.values())

    def counts(self, kind: MessageKind, camera: str | None = None) -> Waiting:
        """Return the counts of results or pictures, of one camera or of all."""
        return self._outboxes[kind].counts(camera)

    def limited(self, camera: str | None = None) -> int:
        """Return how many results were left out for their rate, of one camera or of all."""
        return self._limiters["result"].limited(camera)
