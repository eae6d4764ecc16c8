"""Writer: moves events between the queue and the file, one turn after the other, in the outbox's own thread.

Each turn takes new events, moves rejected events to the quarantine, writes unsaved events in batches of one commit
each, deletes events that are through, too many or too old, and feeds the queue with the next events. Events that the
disk refuses stay here, bounded, and are fed from memory; the disk is tried again with back-off, and as soon as a write
succeeds all of them are written. A damaged file is salvaged into a new one (see `recovery`), and missing events are
counted. A file that was removed or replaced while it was open is put back, because its connection can still read it.
"""

from __future__ import annotations

import math
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from edge_sdk.core.threads import Backoff
from edge_sdk.outbox.event import OutboxSettings, OutboxWarnings, QueuedEvent
from edge_sdk.outbox.queue import OutboxQueue
from edge_sdk.outbox.recovery import DiskTroubleError, disk_trouble, open_store, put_back
from edge_sdk.outbox.store import AgeClock, CommitState, EventStore

_BATCH_EVENTS = 1000
_BATCH_SHARE = 1 / 32  # share of the file's bound that one commit may write: far less than the file keeps free
_LARGEST_SHARE = 1 / 16  # share of the file's bound that a single event may take
_LOOK_EVERY_S = 1.0  # time between two checks whether the file is in place, and for events that are too old
_FIRST_RETRY_S = 2.0
_LONGEST_RETRY_S = 30.0


def batches(events: Iterable[QueuedEvent], max_bytes: int) -> Iterator[list[QueuedEvent]]:
    """Yield batches of 1 to 1000 events of at most `max_bytes`; a larger event gets a batch of its own."""
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
    """Writes the events of one queue to one file, or keeps them in memory where no file is configured.

    One thread uses a writer. `set_aside` is the number of damaged files that were set aside.
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
        self._store: EventStore | None = None  # stays open while the disk fails, and until an orderly end
        self._retry_at: float | None = None  # None: the last write succeeded
        self._damage = ""  # known damage of the file
        self._largest_bytes = min(settings.max_mb * 1e6 * _LARGEST_SHARE, settings.max_memory_bytes / 4)
        self._batch_bytes = int(settings.max_mb * 1e6 * _BATCH_SHARE)
        self._unsaved: dict[int, QueuedEvent] = {}  # by growing ids; no commit has written them
        self._unsaved_bytes = self._seen_to = self._done_to = 0  # `_done_to` is the value in the file
        self._token = uuid.uuid4().hex
        self._salvage: CommitState | None = None  # the outcome of a salvage, until it is logged
        self._unread: list[tuple[int, int]] = []  # id ranges of a closed file that were not read
        self._earlier_to = 0  # events up to this id may have been sent by an earlier process
        self._has_opened = False
        self._look_at = -math.inf

    @property
    def takes(self) -> bool:
        """Whether the file is open and the last write succeeded."""
        return self._store is not None and self._retry_at is None

    @property
    def retry_s(self) -> float:
        """The seconds until the next attempt to use the disk; infinity while the disk works."""
        return math.inf if self._retry_at is None else max(0.0, self._retry_at - time.monotonic())

    def open(self) -> None:
        """Open the file, salvage it if damaged, and take over its events; if the disk fails, try again later."""
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
        """Write new events, delete those that are through, and feed the queue."""
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
        """Write the remaining events and the exact numbers."""
        self._look_at = -math.inf  # notice now at the latest that a file is gone
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

    # Methods for the disk: normal work, failure and recovery.

    def _take_over(self, store: EventStore) -> None:
        """Take over the numbers and events of a file that was just opened."""
        queue, state = self._queue, store.state
        if state.complaint:  # kept here, because `own` clears it in the file, even where that only seems to fail
            self._salvage = state
        is_ours = self._has_opened and (state.owner == self._token or self._salvage is not None)
        with queue.numbers() as numbers:
            numbers.restore(state.bounds, is_orderly=state.is_orderly)
        if not is_ours:
            behind_s = self._clock.behind_s(state.mark) if state.mark is not None else 0.0
            by = queue.make_room(state.last_id)
            if not by:
                self._seen_to = state.last_id
                self._clock.advance(max(0.0, behind_s))
            elif state.number:  # not a new file
                store.shift(0, state.last_id, by, -behind_s)
            self._earlier_to = store.state.last_id
        store.earlier_to = self._earlier_to
        store.own(self._token, self._clock.mark())
        # Only after `own` succeeded, because otherwise all of this is repeated.
        missing = self._salvage.missing if self._salvage is not None else 0
        queue.restore(0 if is_ours else len(store) + missing)
        self._has_opened = True
        if self._salvage is not None:
            self._say_salvage(self._salvage)
            self._salvage = None
        for after, to in list(self._unread):
            if after < queue.fed and store.count_to(to) > store.count_to(after):
                # Events from memory have overtaken those that could not be read. Even if this fails, it may be done.
                by = queue.make_room(store.state.last_id)
                self._add(queue.take_new())  # events put until then have smaller ids, and must be fed first
                self._unread.append((after + by, to + by))
                store.shift(after, to, by, 0.0)
                store.earlier_to = self._earlier_to = store.state.last_id
        self._unread.clear()
        self._count_missing(store)
        self._done_to = store.state.done_to

    def _say_salvage(self, state: CommitState) -> None:
        self.set_aside += 1
        kept = f"{state.salvaged} events were read from it" if state.salvaged else "no event could be read from it"
        aside = f" and is put aside as {state.aside}" if state.aside else ""
        self._warnings.say("outbox_damaged", f"{self._path} was damaged ({state.complaint}){aside}; {kept}")

    def _count_missing(self, store: EventStore) -> None:
        """Count waiting events that are neither in the file nor in memory as lost; write those in memory again."""
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
        for _ in range(2):  # if the file is damaged or gone, the second attempt writes to the new one
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
        self._unread = [(self._queue.fed, store.state.last_id)]
        self._close_store()
        self.open()

    def _fail(self, cause: sqlite3.Error) -> bool:
        """Record that the disk or the file failed; return whether a new file has replaced it."""
        store = self._store
        is_damaged = self._note(cause)
        if self._store is None and store is not None:
            self._unread = [(self._queue.fed, store.state.last_id)]
        if is_damaged:
            self.open()
        return is_damaged and self._store is not None

    def _note(self, cause: sqlite3.Error) -> bool:
        """Record an error, and close the file if it cannot be used now; return whether it is damaged."""
        assert self._path is not None
        trouble = disk_trouble(cause, self._path)
        if trouble is not None:
            self._be_down(trouble)
        else:
            self._damage = str(cause)
        # After an I/O error SQLite does not know what it has written.
        if trouble is None or "I/O" in str(cause):
            self._close_store()
        return trouble is None

    def _be_down(self, trouble: DiskTroubleError) -> None:
        self._retry_at = time.monotonic() + self._retry.next_s()
        self._warnings.memory_only(str(trouble))

    def _close_store(self) -> None:
        """Close the file without marking the end as orderly."""
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

    def _keep_bounds(self, store: EventStore) -> None:
        """Delete events that are through, then those that are too many or, checked once a second, too old."""
        queue, now_s = self._queue, self._clock.seconds()
        if store.is_full:  # acknowledged events that are not final go before unsent ones
            queue.settle(math.inf)
        if store.is_full or now_s >= self._look_at:
            done_to = queue.done_to(is_quarantined=True)
            if done_to > self._done_to:  # first, because events that are through do not count as lost
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

    # Methods for the queue, and for events in memory only.

    def _feed(self) -> None:
        """Feed the queue with the next events while it has room: from the file, or from memory while the disk fails."""
        queue = self._queue
        while (store := self._store) is not None and store.state.last_id > queue.fed:
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
                self._try_disk()  # writes the events of memory to the new file, as the next turn may be far off
                continue
            to = to if to > queue.fed else store.state.last_id  # nothing was read, because the last events were dropped
            # Unsaved events may have smaller ids than later ones that are already in the file.
            events += [event for number, event in self._unsaved.items() if queue.fed < number <= to]
            events.sort(key=lambda event: event.id)
            queue.feed(events, to, has_more=to < store.state.last_id or bool(self._unsaved))
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
        """Return the id up to which all events are on disk or through."""
        return next(iter(self._unsaved)) - 1 if self._unsaved else self._seen_to

    def _remove(self, number: int) -> None:
        event = self._unsaved.pop(number, None)
        self._unsaved_bytes -= event.cost if event is not None else 0

    def _forget(self, done_to: int) -> None:
        """Drop events up to an id, which are through and need not be written any more."""
        while self._unsaved and (first := next(iter(self._unsaved))) <= done_to:
            self._remove(first)
        self._queue.forget(done_to)

    def _bound_memory(self) -> None:
        """Drop the oldest unsaved events that were not fed, so that the memory bound is kept."""
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
