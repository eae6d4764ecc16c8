"""Writer: what the outbox's own thread does between the shelf and the disk, one turn after the other.

Owns the order of things. What the disk does not take stays here, bounded, and goes to the publisher's thread from
memory; as soon as the disk takes something again, all of it goes there.

Slices: events in the portions of one commit each.

Alarm: when the outbox's own thread has something to do.
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from edge_sdk.outbox.event import QueuedEvent
from edge_sdk.outbox.queue import OutboxQueue
from edge_sdk.outbox.recovery import Disk
from edge_sdk.outbox.settings import OutboxSettings
from edge_sdk.outbox.store import AgeClock, EventStore, State
from edge_sdk.outbox.warnings import LossWarnings

_MOST = 1000


def slices(events: Iterable[QueuedEvent], most_bytes: int) -> Iterator[list[QueuedEvent]]:
    """Portions of at most a thousand events and so many bytes, or of one that is larger; no empty one."""
    some: list[QueuedEvent] = []
    size = 0
    for event in events:
        if some and (len(some) >= _MOST or size + event.cost > most_bytes):
            yield some
            some, size = [], 0
        some.append(event)
        size += event.cost
    if some:
        yield some


_SLICE_SHARE = 1 / 32  # of the bound, for the bytes of a commit: far less than the file keeps free
_LARGEST_SHARE = 1 / 16  # of the bound, for a single event
_AGE_EVERY_S = 1.0


class Writer:
    """Used by one thread.

    Args:
        shelf: what is in memory.
        disk: where it goes.
        clock: the time of the outbox.
        settings: bounds.
        complaints: is told of what is too large.
    """

    def __init__(
        self, shelf: OutboxQueue, disk: Disk, clock: AgeClock, settings: OutboxSettings, complaints: LossWarnings
    ) -> None:
        self._shelf, self._disk, self._clock, self._settings = shelf, disk, clock, settings
        self._complaints = complaints
        self._largest_bytes = min(settings.max_mb * 1e6 * _LARGEST_SHARE, settings.max_memory_bytes / 4)
        self._slice_bytes = int(settings.max_mb * 1e6 * _SLICE_SHARE)
        self._unsaved: dict[int, QueuedEvent] = {}  # by growing ids
        self._unsaved_bytes = self._seen_to = self._done_to = 0  # the last is what the file knows of
        self._token = uuid.uuid4().hex
        self._salvage: State | None = None  # what came of one, until it is said
        self._unread: list[tuple[int, int]] = []  # what a file that had to be closed has between these ids
        self._earlier_to = 0  # events up to this id may have been sent by an earlier process
        self._has_opened = self._has_offered = False
        self._age_at = -math.inf

    def open(self) -> None:
        """Open the file where the disk lets us, and find out what it has."""
        store = self._disk.open()
        if store is None:
            return
        try:
            self._take_over(store)
        except sqlite3.Error as cause:
            self._disk.failed(cause)
            self._disk.close()

    def turn(self) -> None:
        """Write down what is new, forget what is through, and give the publisher's thread more."""
        self._see(self._shelf.take_new())
        self._forget(self._shelf.done_to())
        if self._disk.may_try:
            self._try_disk()
        if not self._disk.takes:
            self._bound_memory()
        self._shelf.keep((), {}, self._safe_to)
        self._feed()

    def close(self) -> None:
        """Write down what there is, and the exact numbers."""
        self._age_at = -math.inf  # what goes into a file that is gone is seen at the latest now
        self._disk.hasten()
        self.turn()
        store, shelf = self._disk.store, self._shelf
        if store is not None and self._disk.takes:
            with shelf.numbers() as numbers:
                bounds = numbers.final()
            store.close(bounds, self._clock.mark())
            self._disk.store = None
        self._disk.close()
        self._forget(shelf.done_to())
        shelf.lose_unsaved("memory", self._unsaved)
        if self._disk.astray is not None:
            self._disk.astray.close()
            shelf.count_lost("disk", shelf.waiting)
        self._complaints.lost(shelf.counts().lost, is_last=True)

    def _see(self, new: Sequence[QueuedEvent]) -> None:
        for event in new:
            self._seen_to = event.id
            if event.cost > self._largest_bytes:
                self._shelf.lose_unsaved("quarantine", [event.id])
                self._complaints.too_large(event.topic, len(event.payload))
                continue
            self._unsaved[event.id] = event
            self._unsaved_bytes += event.cost

    def _take_over(self, store: EventStore) -> None:
        shelf, state = self._shelf, store.state
        if state.complaint:  # kept here: the file forgets it with `own`, also where that only seems to fail
            self._salvage = state
        is_salvaged = self._salvage is not None and self._disk.astray is None
        is_ours = self._has_opened and (state.owner == self._token or is_salvaged)
        with shelf.numbers() as numbers:
            numbers.restore(state.bounds, is_orderly=state.is_orderly)
        if not is_ours:
            behind_s = self._clock.behind_s(state.mark) if state.mark is not None else 0.0
            self._has_offered = False
            by = shelf.make_room(state.last_id)
            if not by:
                self._seen_to = state.last_id
                self._clock.advance(max(0.0, behind_s))
            elif state.number:  # and no new file
                store.shift(0, state.last_id, by, -behind_s)
            self._earlier_to = store.last_id
        store.earlier_to = self._earlier_to
        store.own(self._token, self._clock.mark())
        # Not before the file is ours: where that fails, all of this is done once more.
        missing = self._salvage.missing if self._salvage is not None else 0
        shelf.restore(0 if is_ours else len(store) + missing)
        self._has_opened = True
        if self._salvage is not None:
            self._disk.tell_salvage(self._salvage)
            self._salvage = None
        self._see(shelf.take_new(self._disk.carry_over(store, shelf.done_to())))
        for after, to in list(self._unread):
            if after < shelf.fed and store.count_to(to) > store.count_to(after):
                # What was in memory has overtaken what could not be read. Where this fails it may be done all the same.
                by = shelf.make_room(store.last_id)
                self._unread.append((after + by, to + by))
                store.shift(after, to, by, 0.0)
                store.earlier_to = self._earlier_to = store.last_id
        self._unread.clear()
        self._count_missing(store)
        self._done_to = store.state.done_to

    def _count_missing(self, store: EventStore) -> None:
        """Compare what should wait with what is in the file or in memory; what is in memory alone is written again."""
        memory = self._shelf.in_memory()
        held = {event.id: event for event in memory.held} | self._unsaved
        there = store.ids_among({*held, *memory.through})
        self._unsaved = {number: held[number] for number in sorted(held) if number not in there}
        self._unsaved_bytes = sum(event.cost for event in self._unsaved.values())
        waiting = len(store) - store.count_to(memory.done_to) + sum(number > memory.done_to for number in self._unsaved)
        waiting -= sum(number in there or number in self._unsaved for number in memory.through)
        self._shelf.count_lost("disk", max(0, memory.waiting - waiting))

    def _try_disk(self) -> None:
        if self._disk.store is None:
            self.open()
        for _ in range(2):  # what is here goes into a new file at once, where the old one is damaged or gone
            store = self._disk.store
            if store is None:
                return
            try:
                if self._clock.seconds() >= self._age_at:
                    store.look()
                self._write(store)
            except sqlite3.Error as cause:
                if not self._fail(cause):
                    return
            else:
                self._disk.worked()
                return

    def _fail(self, cause: sqlite3.Error) -> bool:
        """True where a file is replaced."""
        store = self._disk.store
        is_over = self._disk.failed(cause)
        if self._disk.store is None and store is not None:
            self._unread = [(self._shelf.fed, store.last_id)]
        if is_over:
            self.open()
        return is_over and self._disk.store is not None

    def _write(self, store: EventStore) -> None:
        shelf = self._shelf
        done_to, mark = shelf.done_to(), self._clock.mark()
        with shelf.aside() as aside:  # after it: what is refused from here on is in the file until it is put aside
            refused, topics = aside.refused(), aside.take_topics()
        if refused:
            store.quarantine(refused)
            with shelf.aside() as aside:
                aside.put_aside(refused)
            for event, _ in refused:
                self._remove(event.id)
        again = self._offer_again(store, topics)
        with shelf.numbers() as numbers:
            bounds = numbers.due()
        self._keep_bounds(store)
        portions = list(slices(self._unsaved.values(), self._slice_bytes))
        if not portions and (done_to > self._done_to or bounds or not self._disk.takes):
            portions = [[]]
        for some in portions:
            was_next = store.last_id <= shelf.fed
            store.commit(some, bounds, done_to, mark)
            self._done_to = done_to
            for event in some:
                self._remove(event.id)
            shelf.keep(some, bounds, self._safe_to)
            if was_next:
                self._hand_over(store, some)
            self._keep_bounds(store)
        if again:  # not before: a kill in between offers them twice, under the same numbers
            store.forget_denied(again)

    def _offer_again(self, store: EventStore, topics: Collection[str]) -> list[int]:
        """Take what was denied and may be no more, as if it was new; its rows in quarantine."""
        if self._has_offered and not topics:
            return []
        denied = store.denied(topics if self._has_offered else None)
        self._has_offered = True
        self._see(self._shelf.take_new(denied))
        return [event.id for event in denied]

    def _hand_over(self, store: EventStore, some: list[QueuedEvent]) -> None:
        """Give what was just written to the publisher's thread as far as there is room: it need not be read again."""
        room, room_bytes = self._shelf.room()
        fed = self._shelf.fed
        given: list[QueuedEvent] = []
        for event in some:
            room_bytes -= event.cost
            if event.id <= fed:
                continue
            if len(given) >= room or room_bytes < 0:
                break
            given.append(event)
        if given:
            self._shelf.feed(given, given[-1].id, has_more=given[-1].id < store.last_id)

    def _keep_bounds(self, store: EventStore) -> None:
        """Of bytes at once, of age now and then."""
        shelf, now_s = self._shelf, self._clock.seconds()
        if store.is_full:  # what the broker has answered, and is doubted, goes before what it has not
            shelf.settle(math.inf)
        if store.is_full or now_s >= self._age_at:
            done_to = shelf.done_to()
            with shelf.aside() as aside:  # after it: what is refused meanwhile stays until it is put aside
                done_to = aside.before(done_to)
            if done_to > self._done_to:  # first: what is through is not lost
                store.commit((), {}, done_to, self._clock.mark())
                self._done_to = done_to
        if store.is_full:
            with shelf.still() as busy_to:
                for gone in store.shed(busy_to):
                    shelf.lose("overflow", gone)
        if now_s >= self._age_at:
            self._age_at = now_s + _AGE_EVERY_S
            with shelf.still() as busy_to:
                shelf.lose("age", store.drop_older(now_s - self._settings.max_age_s, busy_to))
            store.shrink()

    def _feed(self) -> None:
        shelf = self._shelf
        while (store := self._disk.store) is not None and store.last_id > shelf.fed:
            room, room_bytes = shelf.room()
            if room <= 0 or room_bytes <= 0:
                return
            try:
                events, to, damaged = store.read_after(shelf.fed, room, room_bytes)
                if damaged:
                    raise sqlite3.DatabaseError(f"{damaged} events in it are not what was written")
            except sqlite3.Error as cause:
                if not self._fail(cause):
                    break
                self._try_disk()  # into the new file goes what is here: there need be no other turn before long
                continue
            to = to if to > shelf.fed else store.last_id  # nothing there: the last ones were dropped
            # What could not be written yet may come before what was put behind it in the file.
            events += [event for number, event in self._unsaved.items() if shelf.fed < number <= to]
            events.sort(key=lambda event: event.id)
            shelf.feed(events, to, has_more=to < store.last_id or bool(self._unsaved))
        if not self._disk.takes:
            self._feed_from_memory()

    def _feed_from_memory(self) -> None:
        shelf = self._shelf
        room, room_bytes = shelf.room()
        given: list[QueuedEvent] = []
        later = (event for number, event in self._unsaved.items() if number > shelf.fed)
        for event in islice(later, max(0, room)):
            room_bytes -= event.cost
            if room_bytes < 0:
                break
            given.append(event)
        if given:
            shelf.feed(given, given[-1].id, has_more=given[-1].id < next(reversed(self._unsaved)))

    @property
    def _safe_to(self) -> int:
        """All up to this id is written down, or through without it."""
        return next(iter(self._unsaved)) - 1 if self._unsaved else self._seen_to

    def _remove(self, number: int) -> None:
        event = self._unsaved.pop(number, None)
        self._unsaved_bytes -= event.cost if event is not None else 0

    def _forget(self, done_to: int) -> None:
        """What is through need not be written down any more."""
        while self._unsaved and (first := next(iter(self._unsaved))) <= done_to:
            self._remove(first)
        self._shelf.forget(done_to)

    def _bound_memory(self) -> None:
        """Of what the disk does not take the newest is kept."""
        too_much = self._unsaved_bytes - self._settings.max_memory_bytes
        lost: list[int] = []
        for number, event in self._unsaved.items():
            if too_much <= 0:
                break
            if number > self._shelf.fed:
                lost.append(number)
                too_much -= event.cost
        for number in lost:
            self._remove(number)
        self._shelf.lose_unsaved("memory", lost)


_IDLE_S = 60.0
_SOON_S = 0.5  # the file learns so soon what the broker has; a kill before that sends it twice


class WriterSchedule:
    """Of one outbox.

    Attributes:
        is_idle: whether its thread waits: what is put now must ring.
    """

    def __init__(self) -> None:
        self._bell = threading.Event()
        self._soon_at = math.inf
        self.is_idle = True

    def ring(self) -> None:
        """Let the thread look at once."""
        self._bell.set()

    def soon(self) -> None:
        """Let it look within half a second."""
        if self._soon_at == math.inf:
            self._soon_at = time.monotonic() + _SOON_S
            self._bell.set()

    def clear(self) -> None:
        """It looks now."""
        self._soon_at = math.inf

    def wait(self, has_work: Callable[[], bool], due_s: Callable[[], float]) -> None:
        """Wait for something to do.

        Args:
            has_work: whether there is.
            due_s: seconds until there is, whatever comes.
        """
        self.is_idle = True  # before the look: what is put in between rings
        while not has_work():
            wait_s = min(_IDLE_S, due_s(), self._soon_at - time.monotonic())
            if wait_s <= 0:
                break
            is_rung = self._bell.wait(wait_s)
            self._bell.clear()
            if not is_rung:
                break
        self.is_idle = False
