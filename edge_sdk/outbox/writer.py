"""Writer: what the outbox's own thread does between the queue and the file, one turn after the other.

Each turn takes what was newly put, moves rejected events to the quarantine, writes what is not written yet in portions
of one commit each, deletes what is through, too much or too old, and feeds the queue with the next events. What the
disk does not take stays here, bounded, and is fed from memory; the disk is tried again with back-off, and as soon as it
takes something all of that goes there. A file that is damaged is begun anew (see `recovery`), and what is missing is
counted. One that was removed or replaced while it was open is put back: its connection still reads it.
"""

from __future__ import annotations

import math
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from edge_sdk.core.threads import Backoff
from edge_sdk.outbox.event import QueuedEvent
from edge_sdk.outbox.queue import OutboxQueue
from edge_sdk.outbox.recovery import DiskTroubleError, disk_trouble, open_store, put_back
from edge_sdk.outbox.settings import OutboxSettings
from edge_sdk.outbox.store import AgeClock, EventStore, State
from edge_sdk.outbox.warnings import OutboxWarnings

_BATCH_EVENTS = 1000
_BATCH_SHARE = 1 / 32  # of the bound, for the bytes of a commit: far less than the file keeps free
_LARGEST_SHARE = 1 / 16  # of the bound, for a single event
_LOOK_EVERY_S = 1.0  # at the file's place, and for events that are too old
_FIRST_RETRY_S = 2.0
_LONGEST_RETRY_S = 30.0


def batches(events: Iterable[QueuedEvent], max_bytes: int) -> Iterator[list[QueuedEvent]]:
    """Yield events in portions of at most a thousand and of `max_bytes`, or of one that is larger; no empty one."""
    batch: list[QueuedEvent] = []
    size = 0
    for event in events:
        if batch and (len(batch) >= _BATCH_EVENTS or size + event.cost > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += event.cost
    if batch:
        yield batch


class Writer:
    """Brings the events of one queue to one file, where one is wanted. Used by one thread.

    Attributes:
        set_aside: how many damaged files were put aside.
    """

    def __init__(
        self,
        queue: OutboxQueue,
        path: Path | None,
        clock: AgeClock,
        settings: OutboxSettings,
        warnings: OutboxWarnings,
        retry: Backoff | None = None,
    ) -> None:
        self._queue, self._path, self._clock, self._settings = queue, path, clock, settings
        self._warnings, self._retry = warnings, retry or Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        self.set_aside = 0
        self._store: EventStore | None = None  # though it may take nothing at present; at an orderly end it stays
        self._retry_at: float | None = None  # None: the disk took what it was given last
        self._damage = ""  # what is known to be wrong with the file
        self._largest_bytes = min(settings.max_mb * 1e6 * _LARGEST_SHARE, settings.max_memory_bytes / 4)
        self._batch_bytes = int(settings.max_mb * 1e6 * _BATCH_SHARE)
        self._unsaved: dict[int, QueuedEvent] = {}  # by growing ids: no commit has written them down
        self._unsaved_bytes = self._seen_to = self._done_to = 0  # the last is what the file knows of
        self._token = uuid.uuid4().hex
        self._salvage: State | None = None  # the outcome of a salvage, until it is said
        self._unread: list[tuple[int, int]] = []  # ids that a file which had to be closed has, and nobody has read
        self._earlier_to = 0  # events up to this id may have been sent by an earlier process
        self._has_opened = self._has_offered = False
        self._look_at = -math.inf

    @property
    def takes(self) -> bool:
        """Whether the file is open and took what it was given last."""
        return self._store is not None and self._retry_at is None

    @property
    def retry_s(self) -> float:
        """Seconds until the disk is to be tried again; infinity while nothing is wrong."""
        return math.inf if self._retry_at is None else max(0.0, self._retry_at - time.monotonic())

    def open(self) -> None:
        """Open the file, or a new one in place of a damaged one, where the disk lets us, and find out what it has."""
        if self._path is None:
            return
        try:
            self._store = open_store(self._path, self._settings, self._damage)
        except DiskTroubleError as trouble:
            self._be_down(trouble)
            return
        self._damage = ""
        try:
            self._take_over(self._store)
        except sqlite3.Error as cause:
            self._note(cause)
            self._close_store()

    def turn(self) -> None:
        """Write down what is new, forget what is through, and feed the queue."""
        self._add(self._queue.take_new())
        self._forget(self._queue.done_to())
        if self._path is not None and (self._retry_at is None or self.retry_s == 0):
            self._try_disk()
        if not self.takes:
            self._bound_memory()
        self._queue.committed({}, self._safe_to)
        self._feed()
        self._warnings.lost(self._queue.stats().lost)

    def close(self) -> None:
        """Write down what there is, and the exact numbers."""
        self._look_at = -math.inf  # that a file is gone is noticed at the latest now
        self._retry_at = None if self._retry_at is None else time.monotonic()
        self.turn()
        store, queue = self._store, self._queue
        is_in_place = store is None or store.is_in_place
        if store is not None and self.takes:
            with queue.numbers() as numbers:
                bounds = numbers.final()
            store.close(bounds, self._clock.mark())
        else:
            self._close_store()
        self._forget(queue.done_to())
        queue.lose("memory", self._unsaved, is_safe=False)
        if not is_in_place:
            queue.count_lost("disk", queue.waiting)
        self._warnings.lost(queue.stats().lost, is_last=True)

    def _add(self, new: Sequence[QueuedEvent]) -> None:
        for event in new:
            self._seen_to = event.id
            if event.cost > self._largest_bytes:
                self._queue.lose("quarantine", [event.id], is_safe=False)
                self._warnings.too_large(event.topic, len(event.payload))
            else:
                self._unsaved[event.id] = event
                self._unsaved_bytes += event.cost

    # The disk, while it takes what it is given, does not, and does again.

    def _take_over(self, store: EventStore) -> None:
        """Make a file that was just opened ours: its numbers and its events."""
        queue, state = self._queue, store.state
        if state.complaint:  # kept here: the file forgets it with `own`, also where that only seems to fail
            self._salvage = state
        is_ours = self._has_opened and (state.owner == self._token or self._salvage is not None)
        with queue.numbers() as numbers:
            numbers.restore(state.bounds, is_orderly=state.is_orderly)
        if not is_ours:
            behind_s = self._clock.behind_s(state.mark) if state.mark is not None else 0.0
            self._has_offered = False
            by = queue.make_room(state.last_id)
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
        queue.restore(0 if is_ours else len(store) + missing)
        self._has_opened = True
        if self._salvage is not None:
            self._say_salvage(self._salvage)
            self._salvage = None
        for after, to in list(self._unread):
            if after < queue.fed and store.count_to(to) > store.count_to(after):
                # What was in memory has overtaken what could not be read. Where this fails it may be done all the same.
                by = queue.make_room(store.last_id)
                self._add(queue.take_new())  # what was put until then has smaller ids, and must be fed before
                self._unread.append((after + by, to + by))
                store.shift(after, to, by, 0.0)
                store.earlier_to = self._earlier_to = store.last_id
        self._unread.clear()
        self._count_missing(store)
        self._done_to = store.state.done_to

    def _say_salvage(self, state: State) -> None:
        self.set_aside += 1
        kept = f"{state.salvaged} events were read from it" if state.salvaged else "no event could be read from it"
        aside = f" and is put aside as {state.aside}" if state.aside else ""
        self._warnings.say("outbox_damaged", f"{self._path} was damaged ({state.complaint}){aside}; {kept}")

    def _count_missing(self, store: EventStore) -> None:
        """Compare what should wait with what is in the file or in memory; what is in memory alone is written again."""
        memory = self._queue.in_memory()
        held = memory.held | self._unsaved
        there = store.ids_among({*held, *memory.through})
        self._unsaved = {number: held[number] for number in sorted(held) if number not in there}
        self._unsaved_bytes = sum(event.cost for event in self._unsaved.values())
        waiting = len(store) - store.count_to(memory.done_to) + sum(number > memory.done_to for number in self._unsaved)
        waiting -= sum(number in there or number in self._unsaved for number in memory.through)
        self._queue.count_lost("disk", max(0, memory.waiting - waiting))

    def _try_disk(self) -> None:
        if self._store is None:
            self.open()
        for _ in range(2):  # what is here goes into a new file at once, where the old one is damaged or gone
            store = self._store
            if store is None:
                return
            try:
                is_time = self._retry_at is not None or self._clock.seconds() >= self._look_at
                if is_time and not store.is_in_place:
                    self._put_back(store)
                    continue
                self._write(store)
            except DiskTroubleError as trouble:
                self._be_down(trouble)
                return
            except sqlite3.Error as cause:
                if not self._fail(cause):
                    return
            else:
                if self._retry_at is not None:
                    self._retry_at = None
                    self._warnings.say("outbox_disk", "")
                self._retry.reset()
                return

    def _put_back(self, store: EventStore) -> None:
        assert self._path is not None
        aside = put_back(store, self._path, self._settings)
        line = f"{self._path} was removed or replaced while it was used; {len(store)} events were carried over"
        instead = f", what was there instead is put aside as {aside}" if aside else ""
        self._warnings.say("outbox_damaged", f"{line}{instead}; nothing else may touch it")
        self._unread = [(self._queue.fed, store.last_id)]
        self._close_store()
        self.open()

    def _fail(self, cause: sqlite3.Error) -> bool:
        """Record that the file took nothing; return whether there is another one in its place now."""
        store = self._store
        is_damaged = self._note(cause)
        if self._store is None and store is not None:
            self._unread = [(self._queue.fed, store.last_id)]
        if is_damaged:
            self.open()
        return is_damaged and self._store is not None

    def _note(self, cause: sqlite3.Error) -> bool:
        """Take note of an error, and close the file where it is of no use now; return whether it is damaged."""
        assert self._path is not None
        trouble = disk_trouble(cause, self._path)
        if trouble is not None:
            self._be_down(trouble)
        else:
            self._damage = str(cause)
        # After an error of the device itself SQLite does not know what it has written.
        if trouble is None or "I/O" in str(cause):
            self._close_store()
        return trouble is None

    def _be_down(self, trouble: DiskTroubleError) -> None:
        self._retry_at = time.monotonic() + self._retry.next_s()
        self._warnings.memory_only(str(trouble))

    def _close_store(self) -> None:
        """Close the file, without an orderly end."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _write(self, store: EventStore) -> None:
        queue, mark = self._queue, self._clock.mark()
        if rejected := queue.rejected():
            store.quarantine(rejected)
            queue.quarantined(rejected)
            for event, _ in rejected:
                self._remove(event.id)
        done_to = queue.done_to(is_quarantined=True)
        offered = self._offer_again(store, queue.take_offered_topics())
        with queue.numbers() as numbers:
            bounds = numbers.due()
        self._keep_bounds(store)
        portions = list(batches(self._unsaved.values(), self._batch_bytes))
        if not portions and (done_to > self._done_to or bounds or not self.takes):
            portions = [[]]
        for batch in portions:
            store.commit(batch, bounds, done_to, mark)
            self._done_to = done_to
            for event in batch:
                self._remove(event.id)
            queue.committed(bounds, self._safe_to)
            self._keep_bounds(store)
        if offered:  # not before: a kill in between offers them twice, under the same numbers
            store.forget_denied(offered)

    def _offer_again(self, store: EventStore, topics: Collection[str]) -> list[int]:
        """Take events that were denied, and may be no more, as if they were new; return their rows in quarantine."""
        if self._has_offered and not topics:
            return []
        denied = store.denied(topics if self._has_offered else None)
        self._has_offered = True
        self._add(self._queue.take_new(denied))
        return [event.id for event in denied]

    def _keep_bounds(self, store: EventStore) -> None:
        """Delete what is through, then what is too much or too old; the latter is looked at once a second."""
        queue, now_s = self._queue, self._clock.seconds()
        if store.is_full:  # what the broker has answered, and is doubted, goes before what it has not
            queue.settle(math.inf)
        if store.is_full or now_s >= self._look_at:
            done_to = queue.done_to(is_quarantined=True)
            if done_to > self._done_to:  # first: what is through is not lost
                store.commit((), {}, done_to, self._clock.mark())
                self._done_to = done_to
        if store.is_full:
            with queue.paused() as busy_to:
                for gone in store.shed(busy_to):
                    queue.lose("overflow", gone)
        if now_s >= self._look_at:
            self._look_at = now_s + _LOOK_EVERY_S
            with queue.paused() as busy_to:
                queue.lose("age", store.drop_older(now_s - self._settings.max_age_s, busy_to))
            store.shrink()

    # The queue, and what is in memory only.

    def _feed(self) -> None:
        """Give the queue the next events as far as there is room: from the file, or from memory while it takes none."""
        queue = self._queue
        while (store := self._store) is not None and store.last_id > queue.fed:
            room, room_bytes = queue.room()
            if room <= 0 or room_bytes <= 0:
                return
            try:
                events, to, damaged = store.read_after(queue.fed, room, room_bytes)
                if damaged:
                    raise sqlite3.DatabaseError(f"{damaged} events in it are not what was written")
            except sqlite3.Error as cause:
                if not self._fail(cause):
                    break
                self._try_disk()  # into the new file goes what is here: there need be no other turn before long
                continue
            to = to if to > queue.fed else store.last_id  # nothing there: the last ones were dropped
            # What could not be written yet may come before what was put behind it in the file.
            events += [event for number, event in self._unsaved.items() if queue.fed < number <= to]
            events.sort(key=lambda event: event.id)
            queue.feed(events, to, has_more=to < store.last_id or bool(self._unsaved))
        if self.takes:
            return
        room, room_bytes = queue.room()
        given: list[QueuedEvent] = []
        for event in islice((event for event in self._unsaved.values() if event.id > queue.fed), max(0, room)):
            room_bytes -= event.cost
            if room_bytes < 0:
                break
            given.append(event)
        if given:
            queue.feed(given, given[-1].id, has_more=given[-1].id < next(reversed(self._unsaved)))

    @property
    def _safe_to(self) -> int:
        """All events up to this id are written down, or through without it."""
        return next(iter(self._unsaved)) - 1 if self._unsaved else self._seen_to

    def _remove(self, number: int) -> None:
        event = self._unsaved.pop(number, None)
        self._unsaved_bytes -= event.cost if event is not None else 0

    def _forget(self, done_to: int) -> None:
        """Drop what is through: it need not be written down any more."""
        while self._unsaved and (first := next(iter(self._unsaved))) <= done_to:
            self._remove(first)
        self._queue.forget(done_to)

    def _bound_memory(self) -> None:
        """Drop the oldest of what the disk does not take, as far as it was not fed, so that the newest is kept."""
        too_much = self._unsaved_bytes - self._settings.max_memory_bytes
        lost: list[int] = []
        for number, event in self._unsaved.items():
            if too_much <= 0:
                break
            if number > self._queue.fed:
                lost.append(number)
                too_much -= event.cost
        for number in lost:
            self._remove(number)
        self._queue.lose("memory", lost, is_safe=False)
