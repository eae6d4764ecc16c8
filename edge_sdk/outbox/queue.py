"""Shelf: the events of an outbox that are in memory, and the counts of all of them.

Owns the lock. Cameras put here, the publisher's thread takes from here, and the outbox's own thread is between them and
the disk; none of them ever holds the lock over I/O. In the order of their ids events are on their way, then ready, then
on disk or with the outbox's thread, then newly put.

Ready: events that are read ahead of their turn, by growing ids, bounded by their number and their bytes.

Answered: events that the broker says it has, for as long as that is in doubt.

A broker that crashes, or whose machine dies without a word, had acknowledged what it had not written down yet. Each
event is doubted a few times: otherwise a link that breaks every second would have the same ones sent for ever.

Commits: up to which event all are safe, who waits for that, and whether one was lost before it was.

Aside: events that the broker refused, on their way to the file's quarantine; and when they are offered again.

What its ACL denied is: at every start, and once the broker takes an event of the same topic, for somebody has mended
the ACL. Other reasons (too large, an invalid payload) hold for the message as long as it is the same.

Tally: how many events came, and what became of them; each is in one of the numbers.

Numbers: which number a camera's next event bears, over restarts.

Owns the rule that no two events that anybody saw bear the same one. A number is given at once; before an event that
bears it leaves or counts as acknowledged, the disk knows of a bound above it. After a kill the numbers go on from that
bound, or from the clock's microseconds where those are higher: a disk that went back in time, or was replaced, does not
repeat what it forgot.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from edge_sdk.outbox.event import Losses, QueuedEvent, is_denial

_MOST_READY = 512  # events
_MOST_BYTES = 512_000


class Prefetch:
    """Of one shelf, under its lock."""

    def __init__(self) -> None:
        self._events: deque[QueuedEvent] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[QueuedEvent]:
        return iter(self._events)

    def room(self) -> tuple[int, int]:
        """Events and bytes that may be added."""
        return _MOST_READY - len(self._events), _MOST_BYTES - self._bytes

    def take(self) -> QueuedEvent:
        """The next one."""
        event = self._events.popleft()
        self._bytes -= event.cost
        return event

    def add(self, events: Sequence[QueuedEvent]) -> None:
        """Add some whose ids are above all others."""
        self._events.extend(events)
        self._bytes += sum(event.cost for event in events)

    def put_first(self, events: Iterable[QueuedEvent]) -> None:
        """Add some in the order of ids, in which all is sent, and written down as through."""
        self._set([*self._events, *events])

    def drop(self, ids: set[int]) -> None:
        """Some are not to be sent."""
        if ids and self._events and self._events[0].id <= max(ids):
            self._set(event for event in self._events if event.id not in ids)

    def _set(self, events: Iterable[QueuedEvent]) -> None:
        self._events = deque(sorted(events, key=lambda event: event.id))
        self._bytes = sum(event.cost for event in self._events)


_MOST_ANSWERED = 4096  # events; beyond that the oldest are believed
_MOST_DOUBTS = 5  # of one event: a broker that crashed as often right after its answers has other troubles


class Unconfirmed:
    """Of one outbox; not for several threads at once."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, QueuedEvent]] = deque()
        self._lowest: deque[int] = deque()  # ids that no later answer is below: the lowest of all is the first
        self._doubts: dict[int, int] = {}

    def add(self, event: QueuedEvent) -> None:
        """The broker has just said that it has this one."""
        if self._doubts.get(event.id, 0) < _MOST_DOUBTS:
            self._events.append((time.monotonic(), event))
            while self._lowest and self._lowest[-1] > event.id:
                self._lowest.pop()
            self._lowest.append(event.id)
            if len(self._events) > _MOST_ANSWERED:
                self._believe()

    def settle(self, before_s: float) -> bool:
        """Believe what was answered before a moment; whether that is anything."""
        count = len(self._events)
        while self._events and self._events[0][0] < before_s:
            self._believe()
        return len(self._events) < count

    def recall(self) -> list[QueuedEvent]:
        """All that are in doubt, which are to be sent again."""
        events = self.events()
        self._events.clear()
        self._lowest.clear()
        for event in events:
            self._doubts[event.id] = self._doubts.pop(event.id, 0) + 1
        while len(self._doubts) > _MOST_ANSWERED:
            del self._doubts[next(iter(self._doubts))]
        return events

    def events(self) -> list[QueuedEvent]:
        """All that are in doubt."""
        return [event for _, event in self._events]

    @property
    def lowest_id(self) -> int | None:
        """Of all that are in doubt; asked at each turn, so without a look at each of them."""
        return self._lowest[0] if self._lowest else None

    def _believe(self) -> None:
        _, event = self._events.popleft()
        if self._lowest[0] == event.id:
            self._lowest.popleft()
        self._doubts.pop(event.id, None)


class CommitTracker:
    """Of one outbox.

    Args:
        lock: of the shelf; who calls anything but `wait` and `newest_seq` has it.

    Attributes:
        safe_to: an id; all events up to it are on disk, through, or lost.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._is_further = threading.Condition(lock)
        self._newest: dict[str, int] = {}
        self.safe_to = 0
        self._losses = 0
        self._told = threading.local()

    def newest_seq(self, camera: str) -> int | None:
        """The newest number that a commit has written down."""
        return self._newest.get(camera)

    def keep(self, events: Sequence[QueuedEvent], to: int) -> None:
        """A commit has written these down, and all up to an id are safe."""
        for event in events:  # an older number comes behind a newer one where it is offered again
            self._newest[event.camera] = max(event.seq, self._newest.get(event.camera, event.seq))
        if to > self.safe_to:
            self.safe_to = to
            self._is_further.notify_all()

    def lose(self) -> None:
        """Something was lost before it was safe."""
        self._losses += 1

    def wait(self, timeout_s: float, put_id: int) -> bool:
        """Wait, with the lock, until all up to an id are safe; see `EventOutbox.wait_committed`.

        What was lost is told to each thread by itself, once: the event that one misses may be another's.
        """
        if not self._is_further.wait_for(lambda: self.safe_to >= put_id, timeout_s):
            return False
        told, self._told.losses = getattr(self._told, "losses", 0), self._losses
        return told == self._losses


_REFUSED = 100  # events that wait to be put aside
_EVERY_S = 60.0  # of one topic, at most: a broker may deny one event and take the next, whatever its ACL says


class Quarantine:
    """Of one outbox, for the holder of its lock.

    Args:
        clock_s: monotonic seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._refused: deque[tuple[QueuedEvent, str]] = deque(maxlen=_REFUSED)
        self._denied: dict[str, float] = {}  # topics, and from when on their events may be offered again
        self._wanted: set[str] = set()

    def refuse(self, event: QueuedEvent, reason: str) -> None:
        """The broker refused an event."""
        self._refused.append((event, reason))
        if is_denial(reason):
            self._denied.setdefault(event.topic, 0.0)

    def refused(self) -> list[tuple[QueuedEvent, str]]:
        """What is not put aside yet."""
        return list(self._refused)

    def before(self, number: int) -> int:
        """The largest id up to this one, of which and before which none waits here."""
        return min([number, *(event.id - 1 for event, _ in self._refused)])

    def put_aside(self, refused: Sequence[tuple[QueuedEvent, str]]) -> None:
        """These are."""
        done = {event.id for event, _ in refused}
        self._refused = deque((one for one in self._refused if one[0].id not in done), maxlen=_REFUSED)

    def delivered(self, topic: str) -> None:
        """The broker took an event."""
        not_before = self._denied.get(topic)
        if not_before is not None and self._clock_s() >= not_before:
            self._denied[topic] = self._clock_s() + _EVERY_S
            self._wanted.add(topic)

    def take_topics(self) -> set[str]:
        """Whose events are to be offered again, each told once."""
        wanted, self._wanted = self._wanted, set()
        return wanted


class Counters:
    """Of one outbox; not for several threads at once.

    Attributes:
        put: that were put since the program began.
        restored: that earlier programs had left on disk.
        delivered: that the broker has.
    """

    def __init__(self) -> None:
        self.put = self.restored = self.delivered = 0
        self._lost: dict[str, int] = {}
        self._through: OrderedDict[int, None] = OrderedDict()  # ids that are counted, and may still be in the file

    def deliver(self, number: int) -> None:
        """The broker says that it has the one with this id."""
        self.delivered += 1
        self._through[number] = None

    def recall(self, numbers: Iterable[int]) -> None:
        """It may not have these."""
        doubtful = set(numbers)
        self.delivered -= len(doubtful)
        for number in doubtful:
            self._through.pop(number, None)

    def refuse(self, number: int) -> None:
        """It never takes this one."""
        self.lose("quarantine", 1)
        self._through[number] = None

    def offer_again(self, count: int) -> None:
        """So many that were put aside wait again; those of earlier programs are not counted as lost here."""
        counted = min(count, self._lost.get("quarantine", 0))
        self.lose("quarantine", -counted)
        self.restored += count - counted

    def lose_those(self, why: str, numbers: set[int]) -> None:
        """These are lost, but for those that are counted already."""
        self.lose(why, len(numbers - self._through.keys()))

    def through_after(self, done_to: int) -> set[int]:
        """Ids above this one that are counted as delivered or lost, and may still be in the file."""
        return {number for number in self._through if number > done_to}

    def forget(self, done_to: int) -> None:
        """Nobody asks any more for those up to an id."""
        while self._through and next(iter(self._through)) <= done_to:  # about in order: a few stay for longer
            self._through.popitem(last=False)

    def lose(self, why: str, count: int) -> None:
        """Some are lost."""
        self._lost[why] = self._lost.get(why, 0) + count

    @property
    def lost(self) -> Losses:
        """What is lost, by why."""
        return Losses(**self._lost)

    @property
    def waiting(self) -> int:
        """What is neither delivered nor lost."""
        return self.put + self.restored - self.delivered - sum(self._lost.values())


_AHEAD = 4096  # numbers; more than are ever put while one commit lasts


class SequenceNumbers:
    """Of all cameras; not for several threads at once.

    Args:
        wall_s: seconds since 1970, however wrong.

    Attributes:
        following: the next number of each camera that has put something; whoever gives it away adds one.
    """

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self.following: dict[str, int] = {}
        self._bounds: dict[str, int] = {}  # on disk: no number from here on was given before
        self._first: dict[str, int] = {}  # of cameras that have put nothing yet

    def first(self, camera: str) -> int:
        """The number to begin with, of a camera that is not in `following`."""
        first = self._first.get(camera)
        return self._at_least(0) if first is None else first

    def restore(self, bounds: Mapping[str, int], *, is_orderly: bool) -> None:
        """Take what the disk knows, and nothing else.

        Args:
            bounds: by camera.
            is_orderly: whether the last process that wrote them had ended by itself, so that they are exact.
        """
        self._bounds = dict(bounds)
        for camera, bound in bounds.items():
            first = bound if is_orderly else self._at_least(bound)
            self._first[camera] = max(first, self._first.get(camera, 0))
            if camera in self.following:
                self.following[camera] = max(self.following[camera], bound)

    def due(self) -> dict[str, int]:
        """Bounds that the disk must know with the next commit, by camera."""
        return {
            camera: number + _AHEAD
            for camera, number in self.following.items()
            if number + _AHEAD // 2 > self._bounds.get(camera, 0)
        }

    def kept(self, bounds: Mapping[str, int]) -> None:
        """The disk knows these bounds."""
        self._bounds.update(bounds)

    def final(self) -> dict[str, int]:
        """The exact next numbers, for an orderly end."""
        return {**self._first, **self.following}

    def _at_least(self, bound: int) -> int:
        return max(bound, int(self._wall_s() * 1_000_000))


_MOST_NEW = 10_000  # events that the outbox's thread has not seen
_LOW = 128  # from here on down the next ones are read


class InMemory(NamedTuple):
    """What is in memory at one moment.

    Attributes:
        held: events on their way, answered and in doubt, or ready.
        through: ids of events after `done_to` that are counted as delivered or lost, and may still be in the file.
        done_to: all events up to this id are through.
        waiting: events that are not through, without those that were put since `take_new`.
    """

    held: list[QueuedEvent]
    through: set[int]
    done_to: int
    waiting: int


class Counts(NamedTuple):
    """How many events came, and what became of them: `put` and `restored` are `delivered`, `lost` or `waiting`."""

    put: int
    restored: int
    delivered: int
    lost: Losses
    waiting: int


class OutboxQueue:
    """Of one outbox; its methods may be called from any thread.

    Args:
        numbers: of the cameras' events.
        age_s: the time of the outbox.
        max_bytes: that may be newly put; of more the oldest are lost.
    """

    def __init__(self, numbers: SequenceNumbers, age_s: Callable[[], float], max_bytes: int) -> None:
        self._numbers, self._age_s, self._max_bytes = numbers, age_s, max_bytes
        self._lock = threading.Lock()
        self._commits = CommitTracker(self._lock)
        self._following = numbers.following
        self._new: deque[tuple[str, bytes, str, int, int]] = deque()
        self._new_bytes = 0
        self._ready = Prefetch()
        self._flying: dict[int, QueuedEvent] = {}
        self._answered = Unconfirmed()
        self._aside = Quarantine()
        self._last_id = self._put_id = self._fed = 0
        self._tally = Counters()
        self._hold_until = 0.0
        self._has_more = self._is_still = False

    def put(self, topic: str, camera: str, encode: Callable[[int], bytes]) -> int:
        """Number one event and take it; returns its number."""
        with self._lock:  # after a pause each call costs microseconds: what can wait is done by `take_new`
            seq = self._following.get(camera)
            if seq is None:
                seq = self._numbers.first(camera)
            payload = encode(seq)
            self._following[camera] = seq + 1  # not before: a number without an event would look like a loss
            self._last_id = self._put_id = self._last_id + 1
            self._new.append((topic, payload, camera, seq, self._last_id))
            self._tally.put += 1
            self._new_bytes += len(payload)
            while self._new_bytes > self._max_bytes or len(self._new) > _MOST_NEW:
                self._new_bytes -= len(self._new.popleft()[1])
                self._tally.lose("memory", 1)
                self._commits.lose()
        return seq

    def leave_out(self, *, is_lost: bool) -> None:
        """One that waited for its number got none: it is lost, or it was no event."""
        with self._lock:
            self._commits.lose()
            if is_lost:
                self._tally.put += 1
                self._tally.lose("memory", 1)

    def committed_seq(self, camera: str) -> int | None:
        """The newest number that a commit has written down."""
        return self._commits.newest_seq(camera)

    def wait_committed(self, timeout_s: float) -> bool:
        """Wait until all that was put before is safe; False where that takes longer, or some of it was lost."""
        with self._lock:
            return self._commits.wait(timeout_s, self._put_id)  # and not for what came from the disk

    # What the publisher's thread does.

    @property
    def is_ready(self) -> bool:
        """Whether there is something to take."""
        return bool(self._ready) and not self._is_still and not self.is_held

    @property
    def is_held(self) -> bool:
        """Whether nothing is taken for a while."""
        return time.monotonic() < self._hold_until

    def take(self) -> QueuedEvent | None:
        """The next event, which is on its way from now on."""
        with self._lock:
            if not self.is_ready:
                return None
            event = self._ready.take()
            self._flying[event.id] = event
            return event

    @property
    def is_low(self) -> bool:
        """Whether more should be read."""
        return self._has_more and len(self._ready) < _LOW

    def deliver(self, event: QueuedEvent) -> None:
        """The broker says that it has it; `recall` may doubt that for a while."""
        with self._lock:
            if self._flying.pop(event.id, None) is not None:
                self._tally.deliver(event.id)
                self._answered.add(event)
                self._aside.delivered(event.topic)

    def settle(self, before_s: float) -> bool:
        """Believe what was answered before a moment; whether that is anything."""
        with self._lock:
            return self._answered.settle(before_s)

    def recall(self) -> None:
        """The connection is over: what is on its way, or was answered and is in doubt, is the next again."""
        with self._lock:
            doubtful = self._answered.recall()
            self._tally.recall(event.id for event in doubtful)
            again = [*doubtful, *self._flying.values()]
            self._ready.put_first(msgspec.structs.replace(event, is_repeated=True) for event in again)
            self._flying.clear()

    def refuse(self, event: QueuedEvent, reason: str) -> None:
        """The broker never takes it."""
        with self._lock:
            if self._flying.pop(event.id, None) is not None:
                self._aside.refuse(event, reason)
                self._tally.refuse(event.id)
                if event.id > self._commits.safe_to:
                    self._commits.lose()

    def give_back(self, event: QueuedEvent, hold_s: float) -> None:
        """It did not arrive, and is the next again; nothing is taken for so many seconds."""
        with self._lock:
            if self._flying.pop(event.id, None) is not None:
                self._ready.put_first([event])
            self._hold_until = max(self._hold_until, time.monotonic() + hold_s)

    # What the outbox's own thread does.

    @property
    def has_new(self) -> bool:
        """Whether something was put that its thread has not seen."""
        return bool(self._new)

    def take_new(self, again: Sequence[QueuedEvent] = ()) -> list[QueuedEvent]:
        """What was put since the last call, and behind it, with new ids, what is offered again."""
        with self._lock:
            new = list(self._new)
            self._new.clear()
            self._new_bytes = 0
            for event in again:
                self._last_id += 1
                new.append((event.topic, event.payload, event.camera, event.seq, self._last_id))
            self._tally.offer_again(len(again))
        now_s = self._age_s()
        return [
            QueuedEvent(topic, payload, camera, seq=seq, id=number, put_s=now_s)
            for topic, payload, camera, seq, number in new
        ]

    @contextmanager
    def aside(self) -> Iterator[Quarantine]:
        """What the broker refused; it refuses nothing meanwhile."""
        with self._lock:
            yield self._aside

    @property
    def fed(self) -> int:
        """The last id that was given to the publisher's thread: those after it are still to come."""
        return self._fed

    def room(self) -> tuple[int, int]:
        """Events and bytes that may be given to the publisher's thread."""
        return self._ready.room()

    def feed(self, events: Sequence[QueuedEvent], to: int, *, has_more: bool) -> None:
        """Give events to the publisher's thread.

        Args:
            events: by growing ids, all after `fed`.
            to: the new `fed`.
            has_more: whether there are others after them.
        """
        with self._lock:
            self._ready.add(events)
            self._fed = to
            self._has_more = has_more

    def done_to(self) -> int:
        """All events up to this id are through, one way or another."""
        with self._lock:
            return self._done_to()

    @contextmanager
    def still(self) -> Iterator[int]:
        """While nothing is taken, what is on disk alone or ready may go; what goes must be told by `lose`.

        Returns:
            An id; no event up to it may go: it may be on its way, or is to be put aside.
        """
        with self._lock:
            self._is_still = True
            answered, refused = self._answered.events(), [event for event, _ in self._aside.refused()]
            busy_to = max([*self._flying, *(event.id for event in [*answered, *refused])], default=0)
        try:
            yield busy_to
        finally:
            self._is_still = False

    def in_memory(self) -> InMemory:
        """What is here at this moment."""
        with self._lock:
            done_to = self._done_to()
            return InMemory(
                [*self._answered.events(), *self._flying.values(), *self._ready],
                self._tally.through_after(done_to),
                done_to,
                self._tally.waiting - len(self._new),
            )

    def lose(self, why: str, ids: Collection[int]) -> None:
        """Events are lost that are not on their way, but for those that are through already; none stays ready."""
        gone = set(ids)
        with self._lock:
            self._ready.drop(gone)
            self._tally.lose_those(why, gone)

    def lose_unsaved(self, why: str, ids: Collection[int]) -> None:
        """The same of events that no commit has written down: who waits for that is told."""
        if ids:
            self.lose(why, ids)
            with self._lock:
                self._commits.lose()

    def forget(self, done_to: int) -> None:
        """All up to an id are through, and nobody asks for them any more."""
        with self._lock:
            self._tally.forget(done_to)

    def count_lost(self, why: str, count: int) -> None:
        """Some are lost that are not here."""
        with self._lock:
            self._tally.lose(why, count)

    def restore(self, count: int) -> None:
        """Count events that come from the disk."""
        with self._lock:
            self._tally.restored += count

    def make_room(self, last_id: int) -> int:
        """Make room for the ids of events that come from the disk, behind those that were given so far.

        Args:
            last_id: the largest one there.

        Returns:
            What must be added to their ids; 0, or no less than the largest one.
        """
        with self._lock:
            by = max(self._last_id, last_id) if self._last_id else 0
            self._last_id = by + last_id
            return by

    @contextmanager
    def numbers(self) -> Iterator[SequenceNumbers]:
        """Which numbers were given; none is meanwhile."""
        with self._lock:
            yield self._numbers

    def keep(self, events: Sequence[QueuedEvent], bounds: dict[str, int], to: int) -> None:
        """A commit has written this down, and with it all up to an id is safe."""
        with self._lock:
            self._numbers.kept(bounds)
            self._commits.keep(events, to)

    def counts(self) -> Counts:
        """How many came, and what became of them."""
        with self._lock:
            tally = self._tally
            return Counts(tally.put, tally.restored, tally.delivered, tally.lost, tally.waiting)

    @property
    def waiting(self) -> int:
        """Events that are not at the broker yet, and not lost."""
        with self._lock:
            return self._tally.waiting

    def _done_to(self) -> int:
        waiting = [next(iter(self._ready)).id] if self._ready else []
        waiting += self._flying
        if (lowest := self._answered.lowest_id) is not None:
            waiting.append(lowest)
        return min(waiting) - 1 if waiting else self._fed
