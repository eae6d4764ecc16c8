"""OutboxQueue: the events of an outbox that are in memory, the state of each, and counts of all of them.

Three kinds of threads use the queue. None of them holds its lock while it reads or writes a file or a socket::

    cameras --put--> new --take_new--> writer --commit--> file
                                         | feed, by growing ids
    publisher <--take-- entries: ready -> in_flight -> answered -> through

From `feed` on, an event has an entry that holds its state; an event that is `through` is delivered, rejected or lost.

An answered event may have to be sent again, because a broker that crashes may have acknowledged events that it had not
stored. An acknowledgement is therefore final only once the broker has sent something later on the same connection. When
the connection ends before that, the event is sent again, a few times at most. Rejected events go to the quarantine in
the file.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import msgspec

from edge_sdk.outbox.event import Encode, EventStats, Losses, QueuedEvent

_NUMBERS_AHEAD = 4096  # more numbers than cameras use while one commit lasts
_MAX_NEW = 10_000  # events that the writer has not taken, or that wait until the file is read
_MAX_READY = 512  # events that are read from the file in advance
_MAX_READY_BYTES = 512_000
_FEW_READY = 128  # below this number of ready events the writer reads more
_MAX_ANSWERED = 4096  # events; beyond that the oldest acknowledgements become final
_MAX_DOUBTS = 5  # times that one event is sent again after it was acknowledged
_MAX_REJECTED = 100  # events that wait for the quarantine


class SequenceNumbers:
    """Sequence numbers of the events of each camera. Only one thread at a time may use it.

    A number is given without waiting for the disk, which holds a bound above it before an event with it is sent. After
    a kill the numbers continue from that bound, or from the wall clock in microseconds where that is higher: so they do
    not repeat even when the disk was replaced or restored from an older copy.
    """

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._next: dict[str, int] = {}
        self._given: set[str] = set()  # cameras with numbers of this process
        self._bounds: dict[str, int] = {}  # bounds on disk: no number from the bound on was given before

    def next(self, camera: str) -> int:
        """Return the number of a camera's next event; `give` then records that an event has it."""
        number = self._next.get(camera)
        return self._at_least(0) if number is None else number

    def give(self, camera: str, number: int) -> None:
        """Record that an event has a number."""
        self._next[camera] = number + 1
        self._given.add(camera)

    def restore(self, bounds: Mapping[str, int], *, is_orderly: bool) -> None:
        """Take over the bounds of a file; after an orderly end they are the exact next numbers."""
        self._bounds = dict(bounds)
        for camera, bound in bounds.items():
            first = bound if is_orderly or camera in self._given else self._at_least(bound)
            self._next[camera] = max(first, self._next.get(camera, 0))

    def due(self) -> dict[str, int]:
        """Return the bounds that the next commit must write, by camera."""
        return {
            camera: self._next[camera] + _NUMBERS_AHEAD
            for camera in self._given
            if self._next[camera] + _NUMBERS_AHEAD // 2 > self._bounds.get(camera, 0)
        }

    def save(self, bounds: Mapping[str, int]) -> None:
        """Record that these bounds are on disk."""
        self._bounds.update(bounds)

    def final(self) -> dict[str, int]:
        """Return the exact next numbers by camera, to be written at an orderly end."""
        return dict(self._next)

    def _at_least(self, bound: int) -> int:
        return max(bound, int(self._wall_s() * 1_000_000))


class InMemory(NamedTuple):
    """The events in memory at one moment, counted."""

    held: dict[int, QueuedEvent]  # those that may still have to be sent: ready, in flight, or answered but not final
    through: set[int]  # ids above `done_to` of events counted as delivered or lost, which may still be in the file
    done_to: int  # all events up to this id are through
    waiting: int  # how many are not through, without those that the writer has not taken


class _Entry(msgspec.Struct, eq=False):
    """One event in memory, from `feed` until `forget` deletes it and all entries before it."""

    event: QueuedEvent
    state: Literal["ready", "in_flight", "answered", "through"]
    doubts: int = 0  # how often the connection ended soon after the event was acknowledged


_THROUGH = _Entry(QueuedEvent("", b""), "through")  # shared by all events that are through; needs no payload


class OutboxQueue:
    """In-memory part of one outbox; its methods may be called from any thread.

    When the payloads that wait for the writer exceed `max_bytes`, the oldest of them are lost. Until the queue is open,
    events have no numbers and wait for `number_early`.
    """

    def __init__(
        self,
        numbers: SequenceNumbers,
        age_s: Callable[[], float],
        max_bytes: int,
        *,
        is_open: bool = True,
    ) -> None:
        self._numbers, self._age_s, self._max_bytes = numbers, age_s, max_bytes
        self._lock = threading.Lock()
        self._has_progress = threading.Condition(self._lock)
        self._is_open = is_open
        self._early: deque[tuple[str, str, Encode]] = deque()  # not numbered yet
        self._new: deque[QueuedEvent] = deque()
        self._new_bytes = 0
        self._entries: dict[int, _Entry] = {}  # by growing ids
        self._ready: list[int] = []  # ids, growing
        self._ready_bytes = 0
        self._answered: deque[tuple[float, int]] = deque()  # when, and ids
        self._rejected: deque[tuple[QueuedEvent, str]] = deque(maxlen=_MAX_REJECTED)  # and the broker's reasons
        self._last_id = self._put_id = self._fed = self._safe_to = 0
        self._put = self._restored = self._delivered = 0
        self._lost: Counter[str] = Counter()
        self._unsafe_losses = 0
        self._told = threading.local()
        self._held_until = 0.0
        self._has_more = self._is_paused = False

    # Methods for the cameras' threads.

    def put(self, topic: str, camera: str, encode: Encode) -> int | None:
        """Number one event and append it; return its number, or None where it waits for `number_early`.

        It raises what `encode` raises, and then gives the number to the next event.
        """
        with self._lock:
            if self._is_open and not self._early:
                seq = self._numbers.next(camera)
                self._append(topic, encode(seq), camera, seq)
                self._put += 1
                return seq
            self._add_early(topic, camera, encode)
            return None

    def put_late(self, topic: str, camera: str, encode: Encode) -> None:
        """Append one event that the rate limiter held back; `number_early` reports what its encoding raises."""
        with self._lock:
            self._add_early(topic, camera, encode)

    def wait_committed(self, timeout_s: float) -> bool:
        """Wait as `EventOutbox.wait_committed` does; each thread is told of each loss once, whoever put the event."""
        until = time.monotonic() + timeout_s
        with self._lock:
            if not self._has_progress.wait_for(lambda: self._is_open and not self._early, timeout_s):
                return False
            put_id = self._put_id  # the last id that was put, not the last one read from the disk
            if not self._has_progress.wait_for(lambda: self._safe_to >= put_id, max(0.0, until - time.monotonic())):
                return False
            told, self._told.losses = getattr(self._told, "losses", 0), self._unsafe_losses
            return told == self._unsafe_losses

    # Methods for the publisher's thread.

    @property
    def is_ready(self) -> bool:
        """Whether `take` returns an event."""
        return bool(self._ready) and not self._is_paused and not self.is_held

    @property
    def is_held(self) -> bool:
        """Whether `take` returns nothing for a while, as `give_back` asked."""
        return time.monotonic() < self._held_until

    @property
    def is_low(self) -> bool:
        """Whether the writer should read more events."""
        return self._has_more and len(self._ready) < _FEW_READY

    def take(self) -> QueuedEvent | None:
        """Take the next event, which is in flight from now on; None where there is none."""
        with self._lock:
            if not self.is_ready:
                return None
            entry = self._entries[self._ready.pop(0)]
            self._ready_bytes -= entry.event.cost
            entry.state = "in_flight"
            return entry.event

    def deliver(self, event: QueuedEvent) -> None:
        """Record that the broker acknowledged an event; until `settle`, `recall` can make it ready again."""
        with self._lock:
            if (entry := self._in_flight(event)) is None:
                return
            self._delivered += 1
            if entry.doubts < _MAX_DOUBTS:
                entry.state = "answered"
                self._answered.append((time.monotonic(), event.id))
                if len(self._answered) > _MAX_ANSWERED:
                    self._believe()
            else:
                self._entries[event.id] = _THROUGH

    def settle(self, before_s: float) -> bool:
        """Make acknowledgements from before `before_s` final; return whether there were any."""
        with self._lock:
            count = len(self._answered)
            while self._answered and self._answered[0][0] < before_s:
                self._believe()
            return len(self._answered) < count

    def recall(self) -> None:
        """Make all events ready again that are in flight or answered, because the connection ended."""
        with self._lock:
            for entry in self._entries.values():
                if entry.state in ("in_flight", "answered"):
                    if entry.state == "answered":
                        self._delivered -= 1
                        entry.doubts += 1
                    entry.event = msgspec.structs.replace(entry.event, is_repeated=True)
                    self._make_ready(entry)
            self._answered.clear()

    def reject(self, event: QueuedEvent, reason: str) -> None:
        """Count an event that the broker refuses for good as lost, and keep it for the writer to quarantine."""
        with self._lock:
            if self._in_flight(event) is None:
                return
            self._entries[event.id] = _THROUGH
            self._lost["quarantine"] += 1
            self._rejected.append((event, reason))
            if event.id > self._safe_to:
                self._unsafe_losses += 1

    def give_back(self, event: QueuedEvent, hold_s: float) -> None:
        """Make an event that did not arrive ready again, and let `take` return nothing for `hold_s` seconds."""
        with self._lock:
            if (entry := self._in_flight(event)) is not None:
                self._make_ready(entry)
            self._held_until = max(self._held_until, time.monotonic() + hold_s)

    # Methods for the writer's thread.

    @property
    def has_new(self) -> bool:
        """Whether an event was put that the writer has not taken."""
        return bool(self._new or self._early)

    def number_early(self, on_encoded: Callable[[Exception | None], None]) -> None:
        """Number the events that wait for it, and open the queue, so that `put` numbers later events at once.

        The first call comes once the file has told which numbers were given, or cannot be read. `on_encoded` gets what
        each event's encoding raised, or None.
        """
        while True:
            with self._lock:
                if not self._early:
                    self._is_open = True
                    self._has_progress.notify_all()
                    return
                first = topic, camera, encode = self._early[0]  # stays there: no other event may get its number
                seq = self._numbers.next(camera)
            payload: bytes | None = None
            failure: Exception | None = None
            try:
                payload = encode(seq)  # without the lock: cameras would wait for it
            except Exception as cause:  # noqa: BLE001 - the fault of the caller of `put`, which has returned
                failure = cause
            on_encoded(failure)
            with self._lock:
                if not self._early or self._early[0] is not first:
                    continue  # the event was dropped to make room for newer ones
                self._early.popleft()
                if payload is None:
                    self._put -= 1
                    self._unsafe_losses += 1
                else:
                    self._append(topic, payload, camera, seq)

    def take_new(self) -> list[QueuedEvent]:
        """Take the events put since the last call."""
        with self._lock:
            new = list(self._new)
            self._new.clear()
            self._new_bytes = 0
            return new

    @property
    def fed(self) -> int:
        """The last id that `feed` has handed over."""
        return self._fed

    def room(self) -> tuple[int, int]:
        """Return how many events, and how many bytes of them, `feed` may hand over."""
        return _MAX_READY - len(self._ready), _MAX_READY_BYTES - self._ready_bytes

    def feed(self, events: Sequence[QueuedEvent], to: int, *, has_more: bool) -> None:
        """Make events ready for the publisher's thread; their ids grow and are above `fed`, which becomes `to`."""
        with self._lock:
            for event in events:
                entry = self._entries[event.id] = _Entry(event, "ready")
                self._make_ready(entry)
            self._fed, self._has_more = to, has_more

    def done_to(self, *, is_quarantined: bool = False) -> int:
        """Return an id up to which all events are through and, if `is_quarantined`, rejected ones are in quarantine."""
        with self._lock:
            done_to = self._done_to()
            return min([done_to, *(event.id - 1 for event, _ in self._rejected)]) if is_quarantined else done_to

    def forget(self, done_to: int) -> None:
        """Forget the entries up to an id; all of them are through, and the writer does not need them any more."""
        with self._lock:
            while self._entries and (first := next(iter(self._entries))) <= done_to:
                del self._entries[first]

    def rejected(self) -> list[tuple[QueuedEvent, str]]:
        """Return the events that wait for the quarantine."""
        with self._lock:
            return list(self._rejected)

    def quarantined(self, rejected: Sequence[tuple[QueuedEvent, str]]) -> None:
        """Record that these events, which `rejected` returned, are in the file's quarantine."""
        done = {event.id for event, _ in rejected}
        with self._lock:
            self._rejected = deque((one for one in self._rejected if one[0].id not in done), _MAX_REJECTED)

    @contextmanager
    def paused(self) -> Iterator[int]:
        """Let `take` return nothing within the context, so that events above the yielded id may be deleted.

        Those up to it may be in flight or wait for the quarantine.
        """
        with self._lock:
            self._is_paused = True
            busy = [number for number, entry in self._entries.items() if entry.state in ("in_flight", "answered")]
            busy_to = max([*busy, *(event.id for event, _ in self._rejected)], default=0)
        try:
            yield busy_to
        finally:
            self._is_paused = False

    def in_memory(self) -> InMemory:
        """Return the events that are in memory at this moment."""
        with self._lock:
            done_to, held, through = self._done_to(), dict[int, QueuedEvent](), set[int]()
            for number, entry in self._entries.items():
                if entry.state != "through":
                    held[number] = entry.event
                if entry.state in ("answered", "through") and number > done_to:
                    through.add(number)
            return InMemory(held, through, done_to, self._waiting() - len(self._new) - len(self._early))

    def lose(self, why: str, ids: Collection[int], *, is_safe: bool = True) -> None:
        """Count events as lost, by a field of `Losses`, unless they are through; `is_safe`: a commit wrote them."""
        with self._lock:
            for number in ids:
                entry = self._entries.get(number)
                if entry is not None and entry.state in ("answered", "through"):
                    continue
                self._lost[why] += 1
                self._unsafe_losses += not is_safe
                if entry is not None:
                    if entry.state == "ready":
                        self._ready.remove(number)
                        self._ready_bytes -= entry.event.cost
                    self._entries[number] = _THROUGH

    def count_lost(self, why: str, count: int) -> None:
        """Count events that are not in memory as lost."""
        with self._lock:
            self._lost[why] += count

    def restore(self, count: int) -> None:
        """Count events that come from the disk."""
        with self._lock:
            self._restored += count

    def make_room(self, last_id: int) -> int:
        """Reserve ids for the events on disk, which have ids up to `last_id`, and return the offset to add to those."""
        with self._lock:
            by = max(self._last_id, last_id) if self._last_id else 0
            self._last_id = by + last_id
            return by

    @contextmanager
    def numbers(self) -> Iterator[SequenceNumbers]:
        """Give access to the sequence numbers; no number is given within the context."""
        with self._lock:
            yield self._numbers

    def committed(self, bounds: Mapping[str, int], safe_to: int) -> None:
        """Record the bounds that a commit wrote, and the id up to which all events are on disk or through."""
        with self._lock:
            self._numbers.save(bounds)
            if safe_to > self._safe_to:
                self._safe_to = safe_to
                self._has_progress.notify_all()

    # Methods for all threads.

    def stats(self) -> EventStats:
        """Return the counts of all events."""
        with self._lock:
            return EventStats(
                put=self._put,
                restored=self._restored,
                waiting=self._waiting(),
                delivered=self._delivered,
                lost=Losses(**self._lost),
            )

    @property
    def waiting(self) -> int:
        """The number of events that are neither delivered nor lost."""
        with self._lock:
            return self._waiting()

    def _waiting(self) -> int:
        return self._put + self._restored - self._delivered - self._lost.total()

    def _add_early(self, topic: str, camera: str, encode: Encode) -> None:
        self._early.append((topic, camera, encode))
        self._put += 1
        if len(self._early) > _MAX_NEW:
            self._early.popleft()
            self._lose_unsafe()

    def _append(self, topic: str, payload: bytes, camera: str, seq: int) -> None:
        self._numbers.give(camera, seq)
        self._last_id = self._put_id = self._last_id + 1
        self._new.append(QueuedEvent(topic, payload, camera, seq=seq, id=self._last_id, put_s=self._age_s()))
        self._new_bytes += len(payload)
        while self._new_bytes > self._max_bytes or len(self._new) > _MAX_NEW:
            self._new_bytes -= len(self._new.popleft().payload)
            self._lose_unsafe()

    def _lose_unsafe(self) -> None:
        self._lost["memory"] += 1
        self._unsafe_losses += 1

    def _in_flight(self, event: QueuedEvent) -> _Entry | None:
        entry = self._entries.get(event.id)
        return entry if entry is not None and entry.state == "in_flight" else None

    def _make_ready(self, entry: _Entry) -> None:
        entry.state = "ready"
        insort(self._ready, entry.event.id)
        self._ready_bytes += entry.event.cost

    def _believe(self) -> None:
        """Make the oldest acknowledgement final."""
        _, number = self._answered.popleft()
        self._entries[number] = _THROUGH

    def _done_to(self) -> int:
        return next((number - 1 for number, entry in self._entries.items() if entry.state != "through"), self._fed)
