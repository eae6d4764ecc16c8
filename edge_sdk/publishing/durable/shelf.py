"""Shelf: the events of an outbox that are in memory, and the counts of all of them.

Owns the lock. Cameras put here, the publisher's thread takes from here, and the outbox's own thread is between them and
the disk; none of them ever holds the lock over I/O. In the order of their ids events are on their way, then ready, then
on disk or with the outbox's thread, then newly put.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from edge_sdk.publishing.durable.answered import Answered
from edge_sdk.publishing.durable.aside import Aside
from edge_sdk.publishing.durable.commits import Commits
from edge_sdk.publishing.durable.held import Held
from edge_sdk.publishing.durable.losses import Losses
from edge_sdk.publishing.durable.numbers import Numbers
from edge_sdk.publishing.durable.ready import Ready
from edge_sdk.publishing.durable.tally import Tally

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

    held: list[Held]
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


class Shelf:
    """Of one outbox; its methods may be called from any thread.

    Args:
        numbers: of the cameras' events.
        age_s: the time of the outbox.
        max_bytes: that may be newly put; of more the oldest are lost.
    """

    def __init__(self, numbers: Numbers, age_s: Callable[[], float], max_bytes: int) -> None:
        self._numbers, self._age_s, self._max_bytes = numbers, age_s, max_bytes
        self._lock = threading.Lock()
        self._commits = Commits(self._lock)
        self._following = numbers.following
        self._new: deque[tuple[str, bytes, str, int, int]] = deque()
        self._new_bytes = 0
        self._ready = Ready()
        self._flying: dict[int, Held] = {}
        self._answered = Answered()
        self._aside = Aside()
        self._last_id = self._put_id = self._fed = 0
        self._tally = Tally()
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

    def take(self) -> Held | None:
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

    def deliver(self, event: Held) -> None:
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

    def refuse(self, event: Held, reason: str) -> None:
        """The broker never takes it."""
        with self._lock:
            if self._flying.pop(event.id, None) is not None:
                self._aside.refuse(event, reason)
                self._tally.refuse(event.id)
                if event.id > self._commits.safe_to:
                    self._commits.lose()

    def give_back(self, event: Held, hold_s: float) -> None:
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

    def take_new(self, again: Sequence[Held] = ()) -> list[Held]:
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
            Held(topic, payload, camera, seq=seq, id=number, put_s=now_s) for topic, payload, camera, seq, number in new
        ]

    @contextmanager
    def aside(self) -> Iterator[Aside]:
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

    def feed(self, events: Sequence[Held], to: int, *, has_more: bool) -> None:
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
    def numbers(self) -> Iterator[Numbers]:
        """Which numbers were given; none is meanwhile."""
        with self._lock:
            yield self._numbers

    def keep(self, events: Sequence[Held], bounds: dict[str, int], to: int) -> None:
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
