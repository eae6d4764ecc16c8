"""OutboxQueue: the events of an outbox that are in memory, what became of each, and the counts of all of them.

Three threads meet here, and none of them holds the queue's lock while it reads or writes anything::

    cameras --put--> new --take_new--> writer --commit--> file
                                         | feed, by growing ids
    publisher <--take-- entries: ready -> in_flight -> answered -> through

From when it is fed an event has an entry, which alone says where it stands: `through` is delivered, rejected or lost.

An answered event can still come back: a broker that crashes has acknowledged events that it had not written down. So an
answer counts for good only once the broker has said something later on the same connection; when that ends before, the
event is sent again, a few times at most. Rejected events go to the file's quarantine; those that an ACL denied are
offered again at every start, and once the broker takes an event of the same topic.
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

from edge_sdk.outbox.event import Encode, EventStats, Losses, QueuedEvent, is_denial

_NUMBERS_AHEAD = 4096  # more than are ever put while one commit lasts
_MAX_NEW = 10_000  # events that the writer has not seen, or that wait until the file is read
_MAX_READY = 512  # events that are read ahead of their turn
_MAX_READY_BYTES = 512_000
_FEW_READY = 128  # from here on down more are read
_MAX_ANSWERED = 4096  # events; beyond that the oldest answers are believed
_MAX_DOUBTS = 5  # of one event: a broker that crashed as often right after its answers has other troubles
_MAX_REJECTED = 100  # events that wait for the quarantine
_OFFER_EVERY_S = 60.0  # of one topic: a broker may deny one event and take the next, whatever its access rules say


class SequenceNumbers:
    """The number that the next event of each camera bears. Not for several threads at once.

    A number is given at once; before an event that bears it leaves or counts as acknowledged, the disk knows of a bound
    above it. After a kill the numbers go on from that bound, or from the clock's microseconds where those are higher: a
    disk that went back in time, or was replaced, does not repeat what it forgot.
    """

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._next: dict[str, int] = {}
        self._given: set[str] = set()  # cameras with numbers of this process
        self._bounds: dict[str, int] = {}  # on disk: no number from here on was given before

    def next(self, camera: str) -> int:
        """Return the number of a camera's next event; it counts as given once `give` is called."""
        number = self._next.get(camera)
        return self._at_least(0) if number is None else number

    def give(self, camera: str, number: int) -> None:
        """Record that an event bears a number; the camera's next one is above it."""
        self._next[camera] = number + 1
        self._given.add(camera)

    def restore(self, bounds: Mapping[str, int], *, is_orderly: bool) -> None:
        """Take over the bounds that a file knows, which are exact where it was closed in an orderly way."""
        self._bounds = dict(bounds)
        for camera, bound in bounds.items():
            first = bound if is_orderly or camera in self._given else self._at_least(bound)
            self._next[camera] = max(first, self._next.get(camera, 0))

    def due(self) -> dict[str, int]:
        """Return the bounds that the disk must know with the next commit, by camera."""
        return {
            camera: self._next[camera] + _NUMBERS_AHEAD
            for camera in self._given
            if self._next[camera] + _NUMBERS_AHEAD // 2 > self._bounds.get(camera, 0)
        }

    def save(self, bounds: Mapping[str, int]) -> None:
        """Record that the disk knows these bounds."""
        self._bounds.update(bounds)

    def final(self) -> dict[str, int]:
        """Return the exact next numbers, for an orderly end."""
        return dict(self._next)

    def _at_least(self, bound: int) -> int:
        return max(bound, int(self._wall_s() * 1_000_000))


class InMemory(NamedTuple):
    """The events in memory at one moment, counted.

    Attributes:
        held: events that may still have to be sent: ready, in flight, or answered and in doubt.
        through: ids above `done_to` of events that are counted as delivered or lost, and may still be in the file.
        done_to: all events up to this id are through.
        waiting: how many events are not through, without those that the writer has not seen.
    """

    held: dict[int, QueuedEvent]
    through: set[int]
    done_to: int
    waiting: int


class _Entry:
    """One event in memory, from the put or the read until it and all events before it have been confirmed."""

    __slots__ = ("doubts", "event", "state")

    def __init__(self, event: QueuedEvent, state: Literal["ready", "in_flight", "answered", "through"]) -> None:
        self.event, self.state = event, state
        self.doubts = 0  # of its acknowledgements, because the connection ended soon after them


_THROUGH = _Entry(QueuedEvent("", b""), "through")  # one for all: nobody asks for their events any more


class OutboxQueue:
    """In-memory part of one outbox; its methods may be called from any thread.

    Of payloads of more than `max_bytes` that wait for the writer the oldest are lost. Until `is_open` events have no
    numbers, and wait for `number_early`.
    """

    def __init__(
        self,
        numbers: SequenceNumbers,
        age_s: Callable[[], float],
        max_bytes: int,
        *,
        is_open: bool = True,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._numbers, self._age_s, self._max_bytes, self._clock_s = numbers, age_s, max_bytes, clock_s
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
        self._offer_at: dict[str, float] = {}  # topics that were denied: from when on their events may be offered again
        self._offered_topics: set[str] = set()
        self._last_id = self._put_id = self._fed = self._safe_to = 0
        self._put = self._restored = self._delivered = 0
        self._lost: Counter[str] = Counter()
        self._unsafe_losses = 0
        self._told = threading.local()
        self._held_until = 0.0
        self._has_more = self._is_paused = False

    # What the cameras' threads do.

    def put(self, topic: str, camera: str, encode: Encode) -> int | None:
        """Number one event and take it; return its number, or None where it waits for `number_early`.

        Raises:
            Exception: what `encode` raises; the number is given to the next event.
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
        """Take one event that was held for its rate; `number_early` tells what its encoding raises."""
        with self._lock:
            self._add_early(topic, camera, encode)

    def wait_committed(self, timeout_s: float) -> bool:
        """Wait until all that was put before is safe; return False where that takes longer, or some of it was lost.

        Each thread is told of each loss once: the event that one misses may be another's.
        """
        until = time.monotonic() + timeout_s
        with self._lock:
            if not self._has_progress.wait_for(lambda: self._is_open and not self._early, timeout_s):
                return False
            put_id = self._put_id  # and not of what came from the disk
            if not self._has_progress.wait_for(lambda: self._safe_to >= put_id, max(0.0, until - time.monotonic())):
                return False
            told, self._told.losses = getattr(self._told, "losses", 0), self._unsafe_losses
            return told == self._unsafe_losses

    # What the publisher's thread does.

    @property
    def is_ready(self) -> bool:
        """Whether `take` has an event to give."""
        return bool(self._ready) and not self._is_paused and not self.is_held

    @property
    def is_held(self) -> bool:
        """Whether nothing is taken for a while, because the broker asked for that."""
        return self._clock_s() < self._held_until

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
        """Record that the broker acknowledged an event; `recall` may doubt that for a while."""
        with self._lock:
            if (entry := self._in_flight(event)) is None:
                return
            self._delivered += 1
            if entry.doubts < _MAX_DOUBTS:
                entry.state = "answered"
                self._answered.append((self._clock_s(), event.id))
                if len(self._answered) > _MAX_ANSWERED:
                    self._believe()
            else:
                self._entries[event.id] = _THROUGH
            if event.topic in self._offer_at and self._clock_s() >= self._offer_at[event.topic]:
                self._offer_at[event.topic] = self._clock_s() + _OFFER_EVERY_S
                self._offered_topics.add(event.topic)

    def settle(self, before_s: float) -> bool:
        """Believe the answers that came before a moment; return whether there were any."""
        with self._lock:
            count = len(self._answered)
            while self._answered and self._answered[0][0] < before_s:
                self._believe()
            return len(self._answered) < count

    def recall(self) -> None:
        """Make all that is in flight, or answered and in doubt, ready again: the connection is over."""
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
        """Count an event as lost that the broker never takes, and leave it to the writer to quarantine it."""
        with self._lock:
            if self._in_flight(event) is None:
                return
            self._entries[event.id] = _THROUGH
            self._lost["quarantine"] += 1
            self._rejected.append((event, reason))
            if is_denial(reason):
                self._offer_at.setdefault(event.topic, 0.0)
            if event.id > self._safe_to:
                self._unsafe_losses += 1

    def give_back(self, event: QueuedEvent, hold_s: float) -> None:
        """Make an event ready again that did not arrive, and let nothing be taken for `hold_s` seconds."""
        with self._lock:
            if (entry := self._in_flight(event)) is not None:
                self._make_ready(entry)
            self._held_until = max(self._held_until, self._clock_s() + hold_s)

    # What the outbox's thread does.

    @property
    def has_new(self) -> bool:
        """Whether something was put that the writer has not seen."""
        return bool(self._new or self._early)

    def number_early(self, on_encoded: Callable[[Exception | None], None]) -> None:
        """Number the events that waited for this, and let all later ones be numbered at once.

        To be called once it is known which numbers were given, or that this never will be; and then again and again.
        For each event `on_encoded` is called with what its encoding raised, or None.
        """
        while True:
            with self._lock:
                if not self._early:
                    self._is_open = True
                    self._has_progress.notify_all()
                    return
                first = topic, camera, encode = self._early[0]  # stays there: no other event gets this number meanwhile
                seq = self._numbers.next(camera)
            payload: bytes | None = None
            failure: Exception | None = None
            try:
                payload = encode(seq)  # without the lock, which the cameras would wait for
            except Exception as cause:  # noqa: BLE001 - the fault of the caller of `put`, which has returned
                failure = cause
            on_encoded(failure)
            with self._lock:
                if not self._early or self._early[0] is not first:
                    continue  # it was lost to newer ones
                self._early.popleft()
                if payload is None:
                    self._put -= 1
                    self._unsafe_losses += 1
                else:
                    self._append(topic, payload, camera, seq)

    def take_new(self, again: Sequence[QueuedEvent] = ()) -> list[QueuedEvent]:
        """Take what was put since the last call, and behind it, with new ids, events that are offered again."""
        with self._lock:
            new = list(self._new)
            self._new.clear()
            self._new_bytes = 0
            for event in again:
                self._last_id += 1
                new.append(
                    QueuedEvent(
                        event.topic, event.payload, event.camera, seq=event.seq, id=self._last_id, put_s=self._age_s()
                    )
                )
            # Events that an earlier process quarantined were not counted as lost here.
            counted = min(len(again), self._lost["quarantine"])
            self._lost["quarantine"] -= counted
            self._restored += len(again) - counted
            return new

    @property
    def fed(self) -> int:
        """The last id that was fed; those after it are still to come."""
        return self._fed

    def room(self) -> tuple[int, int]:
        """Return how many events, and bytes, may be fed."""
        return _MAX_READY - len(self._ready), _MAX_READY_BYTES - self._ready_bytes

    def feed(self, events: Sequence[QueuedEvent], to: int, *, has_more: bool) -> None:
        """Give events, by growing ids and all after `fed`, to the publisher's thread; `to` is the new `fed`."""
        with self._lock:
            for event in events:
                entry = self._entries[event.id] = _Entry(event, "ready")
                self._make_ready(entry)
            self._fed, self._has_more = to, has_more

    def done_to(self, *, is_quarantined: bool = False) -> int:
        """Return an id up to which all events are through, and where asked those rejected are in the quarantine."""
        with self._lock:
            done_to = self._done_to()
            return min([done_to, *(event.id - 1 for event, _ in self._rejected)]) if is_quarantined else done_to

    def forget(self, done_to: int) -> None:
        """Forget the entries up to an id: all of them are through, and the writer asks for them no more."""
        with self._lock:
            while self._entries and (first := next(iter(self._entries))) <= done_to:
                del self._entries[first]

    def rejected(self) -> list[tuple[QueuedEvent, str]]:
        """Return the events that wait for the quarantine."""
        with self._lock:
            return list(self._rejected)

    def quarantined(self, rejected: Sequence[tuple[QueuedEvent, str]]) -> None:
        """Record that these, which `rejected` has returned, are in the file's quarantine."""
        done = {event.id for event, _ in rejected}
        with self._lock:
            self._rejected = deque((one for one in self._rejected if one[0].id not in done), _MAX_REJECTED)

    def take_offered_topics(self) -> set[str]:
        """Return the topics whose denied events are to be offered again, each of them once."""
        with self._lock:
            topics, self._offered_topics = self._offered_topics, set()
            return topics

    @contextmanager
    def paused(self) -> Iterator[int]:
        """Let nothing be taken meanwhile, so that events may be deleted, which is told by `lose`.

        Yields:
            An id; no event up to it may be deleted: it may be in flight, or is to be quarantined.
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
        """Return what is in memory at this moment."""
        with self._lock:
            done_to, held, through = self._done_to(), dict[int, QueuedEvent](), set[int]()
            for number, entry in self._entries.items():
                if entry.state != "through":
                    held[number] = entry.event
                if entry.state in ("answered", "through") and number > done_to:
                    through.add(number)
            return InMemory(held, through, done_to, self._waiting() - len(self._new) - len(self._early))

    def lose(self, why: str, ids: Collection[int], *, is_safe: bool = True) -> None:
        """Count events as lost by a name of `Losses`, unless they are delivered or lost already, and send none of them.

        Who waits for a commit is told of those that none has written down (`is_safe` is false).
        """
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
        """Count events as lost that are not in memory."""
        with self._lock:
            self._lost[why] += count

    def restore(self, count: int) -> None:
        """Count events that come from the disk."""
        with self._lock:
            self._restored += count

    def make_room(self, last_id: int) -> int:
        """Make room for the ids up to `last_id` of events on disk, behind those that were given so far.

        Returns:
            What must be added to their ids; 0, or no less than the largest one.
        """
        with self._lock:
            by = max(self._last_id, last_id) if self._last_id else 0
            self._last_id = by + last_id
            return by

    @contextmanager
    def numbers(self) -> Iterator[SequenceNumbers]:
        """Give access to the numbers that were given; none is given meanwhile."""
        with self._lock:
            yield self._numbers

    def committed(self, bounds: Mapping[str, int], safe_to: int) -> None:
        """Record the bounds that a commit has written down, and up to which id all events are on disk or through."""
        with self._lock:
            self._numbers.save(bounds)
            if safe_to > self._safe_to:
                self._safe_to = safe_to
                self._has_progress.notify_all()

    # What anybody asks.

    def stats(self) -> EventStats:
        """Return how many events came, and what became of them."""
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
        """Events that are neither at the broker nor lost."""
        with self._lock:
            return self._waiting()

    def _waiting(self) -> int:
        return self._put + self._restored - self._delivered - self._lost.total()

    def _add_early(self, topic: str, camera: str, encode: Encode) -> None:
        self._early.append((topic, camera, encode))
        self._put += 1
        if len(self._early) > _MAX_NEW:
            self._early.popleft()
            self._lose_unsafe("memory", 1)

    def _append(self, topic: str, payload: bytes, camera: str, seq: int) -> None:
        self._numbers.give(camera, seq)
        self._last_id = self._put_id = self._last_id + 1
        self._new.append(QueuedEvent(topic, payload, camera, seq=seq, id=self._last_id, put_s=self._age_s()))
        self._new_bytes += len(payload)
        while self._new_bytes > self._max_bytes or len(self._new) > _MAX_NEW:
            self._new_bytes -= len(self._new.popleft().payload)
            self._lose_unsafe("memory", 1)

    def _lose_unsafe(self, why: str, count: int) -> None:
        self._lost[why] += count
        self._unsafe_losses += count

    def _in_flight(self, event: QueuedEvent) -> _Entry | None:
        entry = self._entries.get(event.id)
        return entry if entry is not None and entry.state == "in_flight" else None

    def _make_ready(self, entry: _Entry) -> None:
        entry.state = "ready"
        insort(self._ready, entry.event.id)
        self._ready_bytes += entry.event.cost

    def _believe(self) -> None:
        """Believe the oldest answer."""
        _, number = self._answered.popleft()
        self._entries[number] = _THROUGH

    def _done_to(self) -> int:
        return next((number - 1 for number, entry in self._entries.items() if entry.state != "through"), self._fed)
