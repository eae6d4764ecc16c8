"""EventStore: events in an SQLite file, durable once `commit` has returned.

A write-ahead log that is synced with every commit (`synchronous = FULL`) makes a commit survive a power cut. Three
things show afterwards whether the file is complete: a checksum in each row, because SQLite does not notice changed
bytes; a `CommitState` in each commit, which lists the events that the file should hold; and a `CommitRecord`, a second
file with the newest state, because a log that lost its end looks like a shorter one.

`AgeClock` measures the age of events as the time for which the machine was on, because the wall clock of a device
without a battery jumps. One thread at a time may use a store. The open file is locked against other processes.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import os
import sqlite3
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from edge_sdk.outbox.event import QueuedEvent

SALVAGED = ".salvaged"
"""Suffix of a complete file that is about to replace a damaged one."""


def is_there(path: Path) -> bool:
    """Return whether there is a file to open, or a salvaged one that is to replace it."""
    return path.exists() or path.with_name(path.name + SALVAGED).exists()


def _id_of(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _is_at(path: Path, file_id: tuple[int, int]) -> bool:
    try:
        return _id_of(path) == file_id
    except OSError as cause:
        return not isinstance(cause, FileNotFoundError | NotADirectoryError)  # with other errors the file may exist


class AgeMark(msgspec.Struct, frozen=True):
    """One time of the outbox's clock, as stored in the file: the boot, the seconds since it, and the outbox's time."""

    boot_id: str
    since_boot_s: float
    age_s: float


def since_boot_s() -> float:
    """Return the seconds since the machine was started, including those in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class AgeClock:
    """The clock of one outbox, which measures the age of its events; `now_s` returns the seconds since this boot."""

    def __init__(self, boot_id: str, now_s: Callable[[], float] = since_boot_s) -> None:
        self._boot_id, self._now_s = boot_id, now_s
        self._offset_s = -now_s()

    def seconds(self) -> float:
        """Return the outbox's time in seconds; it never jumps once an event has such a time."""
        return self._now_s() + self._offset_s

    def mark(self) -> AgeMark:
        """Return the present time in the form that the file stores."""
        now_s = self._now_s()
        return AgeMark(self._boot_id, now_s, now_s + self._offset_s)

    def behind_s(self, mark: AgeMark) -> float:
        """Return the seconds by which the stored time is ahead of this clock."""
        in_between_s = self._now_s() - mark.since_boot_s if mark.boot_id == self._boot_id else 0.0
        return mark.age_s + max(0.0, in_between_s) - self.seconds()

    def advance(self, by_s: float) -> None:
        """Set the clock forward; to be called before any event has a time of this clock."""
        self._offset_s += by_s


_ENDING = "-committed"
_HEAD_BYTES = 8  # bytes of the length and the CRC-32 of the data after them
_MAX_STATE_BYTES = 1_000_000


class CommitState(msgspec.Struct, kw_only=True):
    """The state of the whole file after a commit, written as part of that commit.

    The ids in the file are those from `done_to` (exclusive) to `last_id`, without those of `gone`: entries (camera,
    after, to) for events of this camera, or of all where it is empty, with ids above `after` and not above `to`.
    """

    file: str  # a random name of the file; a salvage gives it another one
    number: int = 0  # of the commit; the first is 1
    epoch: int = 0  # part of every row's checksum; a new one invalidates rows that remain in unused pages
    owner: str = ""  # a random name of the process that gives the ids
    last_id: int = 0  # the largest id that was ever in the file
    done_to: int = 0  # the broker has all events up to this id, or never gets them
    gone: list[tuple[str, int, int]] = []
    count: int = 0  # events in the file
    bounds: dict[str, int] = {}  # by camera, a number that is above those of all its events
    mark: AgeMark | None = None  # the time of the commit; None before the first commit of a process
    is_orderly: bool = False  # whether the process closed the file with this commit, so that the bounds are exact
    missing: int = 0  # events that a salvage did not find, until they are counted as lost
    salvaged: int = 0  # events that a salvage found
    complaint: str = ""  # the damage because of which the file was salvaged, until it is logged
    aside: str = ""  # the name under which the damaged file is kept; empty where there was none

    def has(self, number: int, camera: str) -> bool:
        """Return whether an event is in the file; True also for an event that is newer than this state."""
        return number > self.done_to and not any(
            after < number <= to and name in ("", camera) for name, after, to in self.gone
        )

    def leave_out(self, camera: str, after: int, to: int) -> None:
        """Record that events are not in the file any more; see `gone`."""
        kept = []
        for entry in self.gone:
            name, other_after, other_to = entry
            if name == camera and other_after <= to and after <= other_to:
                after, to = min(after, other_after), max(to, other_to)
            else:
                kept.append(entry)
        self.gone = [*kept, (camera, after, to)]

    def finish(self, done_to: int) -> None:
        """Record that all events up to an id are delivered or lost."""
        self.done_to = max(self.done_to, done_to)
        self.gone = [entry for entry in self.gone if entry[2] > self.done_to]

    def sealed(self) -> bytes:
        """Encode this state, with its length and its checksum."""
        content = msgspec.json.encode(self)
        return len(content).to_bytes(4, "big") + zlib.crc32(content).to_bytes(4, "big") + content


def unsealed(sealed: object) -> CommitState | None:
    """Decode the result of `CommitState.sealed`, which other bytes may follow; return None where it is damaged."""
    if not isinstance(sealed, bytes):
        return None
    content = sealed[_HEAD_BYTES : _HEAD_BYTES + int.from_bytes(sealed[:4], "big")]
    if zlib.crc32(content) != int.from_bytes(sealed[4:_HEAD_BYTES], "big"):
        return None
    try:
        return msgspec.json.decode(content, type=CommitState)
    except msgspec.MsgspecError:
        return None


class CommitRecord:
    """The state of the last commit, in a small file next to that of the events, and the lock of both files.

    It is written after each commit, before that is reported, and never synced: after a power cut it may be older than
    the file, and is then ignored, but it is never newer than the last commit that returned. Where another process has
    it open, `sqlite3.OperationalError` is raised as by SQLite.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + _ENDING)
        self._descriptor: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            self.close()
            if isinstance(cause, BlockingIOError):
                raise sqlite3.OperationalError("database is locked") from cause
            raise

    def read(self) -> CommitState | None:
        """Return the recorded state; None where there is no intact one."""
        return None if self._descriptor is None else unsealed(os.pread(self._descriptor, _MAX_STATE_BYTES, 0))

    def write(self, sealed: bytes) -> None:
        """Replace the state; if the write fails, the earlier state stays, which is old but valid."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, sealed, 0)

    def close(self) -> None:
        """Release the lock; later calls of `write` do nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


PAGE_BYTES = 4096
STORE_VERSION = 2
TABLES = """
CREATE TABLE IF NOT EXISTS state (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS event (
    id INTEGER PRIMARY KEY, camera TEXT NOT NULL, seq INTEGER NOT NULL, put_s REAL NOT NULL,
    topic TEXT NOT NULL, payload BLOB NOT NULL, crc BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS quarantine (
    id INTEGER PRIMARY KEY, camera TEXT NOT NULL, seq INTEGER NOT NULL, topic TEXT NOT NULL, payload BLOB NOT NULL,
    reason TEXT NOT NULL, crc BLOB NOT NULL);
"""
"""Statements, each ended by a semicolon."""
PUT_STATE = "INSERT OR REPLACE INTO state VALUES (1, ?)"
PUT_EVENT = "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?)"
PUT_QUARANTINE = "INSERT INTO quarantine VALUES (NULL, ?, ?, ?, ?, ?, ?)"
QUARANTINE_ROWS = 100
_READ = "SELECT id, camera, seq, put_s, topic, payload, crc FROM event"
# This statement keeps the newest rows of the quarantine, up to a number of rows and of bytes.
_TRIM_QUARANTINE = """
DELETE FROM quarantine WHERE id NOT IN (
    SELECT id FROM (SELECT id, row_number() OVER newest AS number, sum(length(payload)) OVER newest AS bytes
                    FROM quarantine WINDOW newest AS (ORDER BY id DESC))
    WHERE number <= ? AND bytes <= ?)"""
_LOG_PAGES = 256  # pages of the write-ahead log at which it is copied into the file
_FULL_SHARE = 0.9  # share of used pages from which the oldest events are deleted ...
_CALM_SHARE = 0.87  # ... down to this share; the rest is for the next commit and for SQLite itself
_QUARANTINE_SHARE = 1 / 32  # share of `max_bytes` that quarantined payloads may take
_AT_ONCE = 500  # rows that one statement changes
_MAX_GONE = 500  # entries in `CommitState.gone`, which each commit writes


def row_of(event: QueuedEvent, epoch: int) -> tuple[object, ...]:
    """Return an event as a row, with its checksum."""
    head = f"{epoch}\0{event.id}\0{event.camera}\0{event.seq}\0{event.put_s!r}\0{event.topic}"
    crc = _checksum(head, event.payload)
    return (event.id, event.camera, event.seq, event.put_s, event.topic, event.payload, crc)


def event_of(row: Sequence[Any], epoch: int) -> QueuedEvent | None:
    """Return the event of a row; None where the row is damaged or of another epoch."""
    number, camera, seq, put_s, topic, payload, crc = row
    if not isinstance(payload, bytes) or not isinstance(put_s, float | int):
        return None
    event = QueuedEvent(topic, payload, camera, seq=seq, id=number, put_s=float(put_s))
    return event if row_of(event, epoch)[-1] == crc else None


def quarantine_row_of(event: QueuedEvent, reason: str) -> tuple[object, ...]:
    """Return the row of an event in quarantine, without its id."""
    crc = _checksum(f"{event.camera}\0{event.seq}\0{event.topic}\0{reason}", event.payload)
    return (event.camera, event.seq, event.topic, event.payload, reason, crc)


def quarantined_of(row: Sequence[Any]) -> tuple[QueuedEvent, str] | None:
    """Return the event and the reason of a row with its id; None where the row is damaged."""
    number, camera, seq, topic, payload, reason, crc = row
    if not isinstance(payload, bytes):
        return None
    event = QueuedEvent(topic, payload, camera, seq=seq, id=number)
    return (event, reason) if quarantine_row_of(event, reason)[-1] == crc else None


def _checksum(head: str, payload: bytes) -> bytes:
    """Return a checksum of always four bytes, so that a row in a full file does not grow when its checksum changes."""
    return zlib.crc32(payload, zlib.crc32(head.encode("utf-8", "replace"))).to_bytes(4, "big")


class EventStore:
    """One open file of events, which is made if missing, and its commit record, which is closed with it.

    Its methods raise `sqlite3.Error` where the disk fails, or the file is damaged; `recovery.disk_trouble` tells which.
    """

    def __init__(self, path: Path, max_bytes: int, record: CommitRecord) -> None:
        self._path, self._log, self._record = path, path.with_name(path.name + "-wal"), record
        self._max_pages, self._is_too_large = max_bytes // PAGE_BYTES, False
        self.earlier_to = 0  # an id; events up to it may have been sent by an earlier process
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # only this user may read events
        self._sql = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        self._sql.text_factory = lambda text: text.decode("utf-8", "replace")  # for damaged files
        try:
            self._prepare()
            self._counts: Counter[str] = Counter()
            self.state = self._look_through()
        except BaseException:
            self._sql.close()
            raise

    @property
    def is_in_place(self) -> bool:
        """Whether the file and its log are still at their paths, and were not removed or replaced."""
        return _is_at(self._path, self._file_id) and _is_at(self._log, self._log_id)

    def copy_to(self, path: Path) -> None:
        """Copy the whole store, including its log, into an empty file, even if its own files were moved or removed."""
        self._sql.execute("VACUUM INTO ?", (str(path),))

    def __len__(self) -> int:
        return self.state.count

    def commit(self, events: Sequence[QueuedEvent], bounds: Mapping[str, int], done_to: int, mark: AgeMark) -> None:
        """Write events and state in one transaction, which survives a power cut once this returns.

        The events are not in the file and have growing ids; up to the id `done_to` all are delivered or lost.
        """
        new = [event for event in events if event.id > done_to]
        # Deleted ids may be written again, and the state, which each commit writes, must stay small.
        if (new and new[0].id <= self.state.last_id and self.state.gone) or len(self.state.gone) > _MAX_GONE:
            self.shift(0, 0, 0, 0.0)
        with self._committing() as state:
            gone = self._delete(state, "id <= ?", (done_to,))
            self._sql.executemany(PUT_EVENT, (row_of(event, state.epoch) for event in new))
            state.finish(done_to)
            state.count += len(new)
            state.last_id = max(state.last_id, new[-1].id if new else 0)
            state.bounds = {**state.bounds, **bounds}
            state.mark, state.is_orderly = mark, False
        self._counts.subtract(gone.values())
        self._counts.update(event.camera for event in new)

    def read_after(self, last_id: int, most: int, most_bytes: int) -> tuple[list[QueuedEvent], int, int]:
        """Read the next events; return them, the last id read, and the number of damaged events, which are left out."""
        found: list[QueuedEvent] = []
        damaged = 0
        for row in self._sql.execute(f"{_READ} WHERE id > ? ORDER BY id LIMIT ?", (last_id, most)):
            event = event_of(row, self.state.epoch)
            if event is None or event.id <= last_id:  # a damaged file may have exchanged pages
                last_id, damaged = max(last_id, row[0]), damaged + 1
                continue
            last_id = event.id
            is_repeated = event.id <= self.earlier_to
            found.append(msgspec.structs.replace(event, is_repeated=True) if is_repeated else event)
            most_bytes -= event.cost
            if most_bytes <= 0:
                break
        return found, last_id, damaged

    def shift(self, after: int, to: int, by: int, put_s_by: float) -> None:
        """Give events with ids from `after` (exclusive) to `to` ids above all others, and begin a new epoch.

        `by` is added to their ids and is at least the largest id of all; `put_s_by` is added to their times.
        """
        seen, last_id = 0, self.state.last_id
        with self._committing() as state:
            state.epoch, state.done_to, state.gone = state.epoch + 1, 0, []
            some = f"{_READ} WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"
            while rows := self._sql.execute(some, (seen, last_id, _AT_ONCE)).fetchall():
                changed: list[tuple[object, ...]] = []
                for row in rows:
                    event = event_of(row, self.state.epoch)
                    if event is None:
                        raise sqlite3.DatabaseError("an event in it is not what was written")
                    seen = event.id
                    if after < seen <= to:
                        event = msgspec.structs.replace(event, id=seen + by, put_s=event.put_s + put_s_by)
                    number, *_, put_s, _, _, crc = row_of(event, state.epoch)
                    state.last_id = max(state.last_id, event.id)
                    changed.append((number, put_s, crc, seen))
                self._sql.executemany("UPDATE event SET id = ?, put_s = ?, crc = ? WHERE id = ?", changed)

    def own(self, token: str, mark: AgeMark) -> None:
        """Record the process that gives ids from now on, its clock, and that the outcome of a salvage is known."""
        with self._committing() as state:
            state.owner, state.mark, state.is_orderly = token, mark, False
            state.missing = state.salvaged = 0
            state.complaint = state.aside = ""

    def ids_among(self, numbers: Iterable[int]) -> set[int]:
        """Return the subset of these ids that are in the file."""
        return {n for n in numbers if self._sql.execute("SELECT 1 FROM event WHERE id = ?", (n,)).fetchone()}

    def count_to(self, last_id: int) -> int:
        """Return the number of events in the file up to an id."""
        return self._number("SELECT count(*) FROM event WHERE id <= ?", last_id)

    def drop_older(self, put_s: float, after: int) -> list[int]:
        """Delete events above the id `after` that were put before the time `put_s`; return their ids."""
        row = self._sql.execute("SELECT put_s FROM event WHERE id > ? ORDER BY id LIMIT 1", (after,)).fetchone()
        if row is None or row[0] >= put_s:
            return []
        young = "SELECT coalesce(min(id), ?) FROM event WHERE id > ? AND put_s >= ?"
        [before] = self._sql.execute(young, (self.state.last_id + 1, after, put_s)).fetchone()
        return self._drop("", after, "id > ? AND id < ?", (after, before))

    @property
    def is_full(self) -> bool:
        """Whether the oldest events must be deleted to make room for the next commit."""
        return self._used_pages() > self._max_pages * _FULL_SHARE

    def shed(self, after: int) -> Iterator[list[int]]:
        """Delete the oldest events above an id, of the camera with most, until there is room; yield their ids."""
        if not self.is_full:
            return
        while self._used_pages() > self._max_pages * _CALM_SHARE and self.state.count:
            [(camera, count)] = self._counts.most_common(1)
            oldest = "id IN (SELECT id FROM event WHERE camera = ? AND id > ? ORDER BY id LIMIT ?)"
            begin = max([after, *(to for name, gone, to in self.state.gone if name == camera and gone <= after)])
            gone = self._drop(camera, after, oldest, (camera, begin, max(1, count // 64)))
            if not gone:
                return
            yield gone

    def shrink(self) -> None:
        """Shrink a file that was above its bound when it was opened; only one attempt is made."""
        if self._is_too_large:
            self._is_too_large = False
            with contextlib.suppress(sqlite3.Error):  # the disk has no room for the second copy that this needs
                self._sql.execute("VACUUM")
                self._sql.execute("PRAGMA wal_checkpoint")  # only this makes the file smaller
                self._bound()

    def quarantine(self, refused: Sequence[tuple[QueuedEvent, str]]) -> None:
        """Move rejected events to the quarantine with their reasons; if it is full, the newest are kept."""
        gone: dict[int, str] = {}
        with self._committing() as state:
            for event, reason in refused:
                gone |= self._delete(state, "id = ?", (event.id,))
                state.leave_out(event.camera, event.id - 1, event.id)
                self._sql.execute(PUT_QUARANTINE, quarantine_row_of(event, reason))
            most_bytes = int(self._max_pages * PAGE_BYTES * _QUARANTINE_SHARE)
            self._sql.execute(_TRIM_QUARANTINE, (QUARANTINE_ROWS, most_bytes))
        self._counts.subtract(gone.values())

    def close(self, bounds: Mapping[str, int] | None = None, mark: AgeMark | None = None) -> None:
        """Close the file, in an orderly way where exact bounds and the time are given. Never raises."""
        if bounds is not None and mark is not None:
            # If this fails, the next start finds the file as after a kill.
            with contextlib.suppress(sqlite3.Error), self._committing() as state:
                state.bounds, state.mark, state.is_orderly = {**state.bounds, **bounds}, mark, True
        with contextlib.suppress(sqlite3.Error):
            self._sql.close()
        self._record.close()

    def _prepare(self) -> None:
        run = self._sql.execute
        run("PRAGMA locking_mode = EXCLUSIVE")  # no second process, and no shared memory that a crash leaves behind
        run(f"PRAGMA page_size = {PAGE_BYTES}")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        run(f"PRAGMA journal_size_limit = {_LOG_PAGES * PAGE_BYTES}")
        version = self._number("PRAGMA user_version")
        if version not in (0, STORE_VERSION):
            raise sqlite3.DatabaseError(f"its version is {version}, expected {STORE_VERSION}")
        [found] = run("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(" ".join(str(found).splitlines()))
        self._is_too_large = self._bound() > self._max_pages
        with self._transaction():  # takes the lock, and shows whether the disk can be written
            for statement in TABLES.split(";"):
                run(statement)
            run(f"PRAGMA user_version = {STORE_VERSION}")
        self._file_id, self._log_id = _id_of(self._path), _id_of(self._log)

    def _look_through(self) -> CommitState:
        """Count the events, compare the count with the state of the last commit, and return that state."""
        row = self._sql.execute("SELECT body FROM state").fetchone()
        rows = "SELECT camera, count(*), min(id), max(id) FROM event GROUP BY camera"
        first = last = 0
        for camera, count, least, largest in self._sql.execute(rows):
            self._counts[camera] = count
            first, last = min(first or least, least), max(last, largest)
        state = CommitState(file=uuid.uuid4().hex) if row is None and not self._counts else unsealed(row and row[0])
        if state is None:
            raise sqlite3.DatabaseError("what it says of its last commit cannot be read")
        if self._counts.total() != state.count:
            raise sqlite3.DatabaseError(f"it has {self._counts.total()} events, expected {state.count}")
        if state.count and not state.done_to < first <= last <= state.last_id:
            expected = f"from {state.done_to + 1} to {state.last_id}"
            raise sqlite3.DatabaseError(f"it has events from {first} to {last}, expected {expected}")
        return state

    def _bound(self) -> int:
        """Limit the file to its bound, or to its present size if that is larger; return the limit in pages."""
        return self._number(f"PRAGMA max_page_count = {self._max_pages}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit the statements of the context, or roll them back after an error."""
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._sql.execute("COMMIT")
        except BaseException:
            if self._sql.in_transaction:  # after some errors SQLite has rolled back already
                self._sql.execute("ROLLBACK")
            raise

    @contextmanager
    def _committing(self) -> Iterator[CommitState]:
        """Commit the statements of the context together with the state, which they may change, and record the state."""
        state = copy.copy(self.state)
        with self._transaction():
            yield state
            state.number += 1
            sealed = state.sealed()
            self._sql.execute(PUT_STATE, (sealed,))
        self.state = state
        self._record.write(sealed)

    def _drop(self, camera: str, after: int, condition: str, values: tuple[object, ...]) -> list[int]:
        """Delete the events above an id that match a condition, of one camera or, with an empty name, of all."""
        with self._committing() as state:
            gone = self._delete(state, condition, values)
            if gone:
                state.leave_out(camera, after, max(gone))
        self._counts.subtract(gone.values())
        return list(gone)

    def _delete(self, state: CommitState, condition: str, values: tuple[object, ...]) -> dict[int, str]:
        """Delete the events that match a condition, within a transaction; return their ids and cameras.

        Only callers in this package write the condition, with a question mark for each of `values`.
        """
        found = self._sql.execute(f"SELECT id, camera FROM event WHERE {condition}", values)  # noqa: S608 - see above
        gone: dict[int, str] = dict(found.fetchall())
        if gone:
            self._sql.execute(f"DELETE FROM event WHERE {condition}", values)  # noqa: S608 - see above
            state.count -= len(gone)
        return gone

    def _used_pages(self) -> int:
        return self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count")

    def _number(self, statement: str, *values: object) -> int:
        number: int = self._sql.execute(statement, values).fetchone()[0]
        return number
