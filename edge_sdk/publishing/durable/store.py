"""EventStore: events in a file of SQLite, there for good once `commit` returned.

Owns the bound of the file and what makes a commit survive a power cut: a write-ahead log that is synced with every
commit. Used by one thread at a time, and by one process: the file stays locked while it is open.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from edge_sdk.publishing.durable.age_clock import AgeMark
from edge_sdk.publishing.durable.aside import is_denial
from edge_sdk.publishing.durable.held import Held
from edge_sdk.publishing.durable.place import Place
from edge_sdk.publishing.durable.rows import READ, event_of, row_of
from edge_sdk.publishing.durable.tables import TABLES, TRIM_QUARANTINE
from edge_sdk.publishing.durable.transaction import Transaction

_VERSION = 1
_PAGE_BYTES = 4096
_LOG_PAGES = 256  # of the write-ahead log, before it is copied into the file
_FULL_SHARE = 0.9  # of the pages, from where on the oldest make room ...
_CALM_SHARE = 0.87  # ... down to here: the rest is for the next commit and what SQLite needs
_QUARANTINE_ROWS = 100
_QUARANTINE_SHARE = 1 / 32  # of the bound, for their payloads


class AstrayError(sqlite3.Error):
    """A file that is open is no longer at its path: it was removed, moved, or another disk was mounted there."""


class EventStore:
    """One open file.

    Args:
        path: of the file, made where it is missing; its folder is there.
        max_bytes: that it may take.

    Attributes:
        last_id: the largest id in it; 0 when it is empty.
        bounds: which numbers were given, by camera, when it was opened.
        is_orderly: whether the last process that wrote had closed it.
        owner: who gave the ids.
        mark: of its time; None where it is new.

    Raises:
        sqlite3.Error: the disk does not take it, or it is damaged; `trouble` tells which.
        OSError: the same of the file itself.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_pages, self._is_too_large = max_bytes // _PAGE_BYTES, False
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # what cameras see is nobody else's
        self._sql = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        self._sql.text_factory = lambda text: text.decode("utf-8", "replace")  # of a damaged file; the checksum tells
        try:
            self._prepare()
            self.bounds: dict[str, int] = dict(self._sql.execute("SELECT name, bound FROM camera"))
            meta: dict[str, str] = dict(self._sql.execute("SELECT name, value FROM meta"))
            self.is_orderly = meta.get("is_orderly") == "1"
            self.mark = msgspec.json.decode(meta["mark"], type=AgeMark) if "mark" in meta else None
            self.owner = meta.get("owner", "")
            self.last_id: int = self._number("SELECT coalesce(max(id), 0) FROM event")
            counted = self._sql.execute("SELECT camera, count(*) FROM event GROUP BY camera")
            self._counts: dict[str, int] = dict(counted)
        except msgspec.MsgspecError as cause:
            self._sql.close()
            raise sqlite3.DatabaseError(f"what it says of its time cannot be read: {cause}") from cause
        except BaseException:
            self._sql.close()
            raise

    def look(self) -> None:
        """See whether it is still at its path; a log that was removed begins anew.

        Raises:
            AstrayError: it is not; what it has can still be read. Its log is out of the way of another file there.
            sqlite3.Error: the disk takes nothing.
        """
        if self.is_astray:
            self._place.free()
            raise AstrayError(f"{self._path} was removed or replaced")
        if not self._place.has_log:
            self._sql.execute("PRAGMA journal_mode = DELETE")  # what it has goes into the file ...
            self._begin_log()  # ... and what comes into a new one

    @property
    def is_astray(self) -> bool:
        """Whether something else, or nothing, is at its path."""
        return not self._place.has_file

    def __len__(self) -> int:
        return sum(self._counts.values())

    def commit(self, events: Sequence[Held], bounds: Mapping[str, int], done_to: int, mark: AgeMark) -> None:
        """Write all of this down, or nothing; it survives a power cut from when this returns.

        Args:
            events: that are not in it, by growing ids.
            bounds: of numbers, by camera.
            done_to: the broker has all events up to this id, or never gets them.
            mark: of the time.
        """
        with Transaction(self._sql):
            gone = self._delete("id <= ?", (done_to,))
            self._sql.executemany("INSERT OR IGNORE INTO event VALUES (?, ?, ?, ?, ?, ?, ?)", map(row_of, events))
            self._sql.executemany("INSERT OR REPLACE INTO camera VALUES (?, ?)", bounds.items())
            self._note(mark, is_orderly=False)
        self._count_out(gone)
        for event in events:
            self._counts[event.camera] = self._counts.get(event.camera, 0) + 1
            self.last_id = max(self.last_id, event.id)

    def read_after(self, last_id: int, most: int, most_bytes: int) -> tuple[list[Held], int, int]:
        """The next events.

        Returns:
            The events, by growing ids; the last id that was looked at; how many were damaged, and are left out.
        """
        found: list[Held] = []
        damaged = 0
        for row in self._sql.execute(f"{READ} WHERE id > ? ORDER BY id LIMIT ?", (last_id, most)):
            last_id, event = row[0], event_of(row)
            if event is None:
                damaged += 1
                continue
            found.append(event)
            most_bytes -= event.cost
            if most_bytes <= 0:
                break
        return found, last_id, damaged

    def shift(self, after: int, to: int, by: int, put_s_by: float) -> None:
        """Put events behind those that came in the meantime.

        Args:
            after: an id; those behind it ...
            to: ... up to this one are meant.
            by: what is added to their ids.
            put_s_by: what is added to their times.
        """
        with Transaction(self._sql):
            # By way of negative ids: two rows must not have the same one in between.
            change = "UPDATE event SET id = -(id + ?), put_s = put_s + ? WHERE id > ? AND id <= ?"
            self._sql.execute(change, (by, put_s_by, after, to))
            self._sql.execute("UPDATE event SET id = -id WHERE id < 0")
        self.last_id = self._number("SELECT coalesce(max(id), 0) FROM event")

    def own(self, token: str, mark: AgeMark) -> None:
        """Say who gives ids from now on, by what clock."""
        with Transaction(self._sql):
            self._sql.execute("INSERT OR REPLACE INTO meta VALUES ('owner', ?)", (token,))
            self._note(mark, is_orderly=False)

    def ids_to(self, last_id: int) -> set[int]:
        """The ids of events up to one."""
        return {row[0] for row in self._sql.execute("SELECT id FROM event WHERE id <= ?", (last_id,))}

    def drop_older(self, put_s: float, after: int) -> list[int]:
        """Delete events that were put before a time, and come after an id; their ids."""
        row = self._sql.execute("SELECT put_s FROM event WHERE id > ? ORDER BY id LIMIT 1", (after,)).fetchone()
        return self._drop("id > ? AND put_s < ?", (after, put_s)) if row is not None and row[0] < put_s else []

    @property
    def is_full(self) -> bool:
        """Whether the oldest must make room for the next commit."""
        return self._used_pages() > self._max_pages * _FULL_SHARE

    def shed(self, after: int) -> Iterator[list[int]]:
        """Delete the oldest events, of the camera that has most, until the next commit has room; their ids."""
        if not self.is_full:
            return
        while self._used_pages() > self._max_pages * _CALM_SHARE and any(self._counts.values()):
            camera = max(self._counts, key=lambda name: self._counts[name])
            some = max(1, self._counts[camera] // 64)
            oldest = "id IN (SELECT id FROM event WHERE camera = ? AND id > ? ORDER BY id LIMIT ?)"
            gone = self._drop(oldest, (camera, after, some))
            if not gone:
                return
            yield gone

    def shrink(self) -> None:
        """Make a file smaller that was above its bound when it was opened, once; where that fails it stays as it is."""
        if self._is_too_large:
            self._is_too_large = False
            with contextlib.suppress(sqlite3.Error):  # no room for the second copy that it takes
                self._sql.execute("VACUUM")
                self._sql.execute("PRAGMA wal_checkpoint")  # not before it is the file smaller
                self._bound()

    def quarantine(self, refused: Sequence[tuple[Held, str]]) -> None:
        """Put events aside that the broker does not take, each with the reason; the newest are kept, bounded."""
        gone: list[tuple[int, str]] = []
        with Transaction(self._sql):
            for event, reason in refused:
                gone += self._delete("id = ?", (event.id,))
                columns = (event.camera, event.seq, event.topic, event.payload, reason)
                self._sql.execute("INSERT INTO quarantine VALUES (NULL, ?, ?, ?, ?, ?)", columns)
            most_bytes = int(self._max_pages * _PAGE_BYTES * _QUARANTINE_SHARE)
            self._sql.execute(TRIM_QUARANTINE, (_QUARANTINE_ROWS, most_bytes))
        self._count_out(gone)

    def denied(self, topics: Collection[str] | None) -> list[Held]:
        """Events that were put aside because a broker's ACL denied them; their ids are those of quarantine.

        Args:
            topics: of these; None: of all.
        """
        rows = self._sql.execute("SELECT id, camera, seq, topic, payload, reason FROM quarantine ORDER BY id")
        return [
            Held(topic, payload, camera, seq=seq, id=number)
            for number, camera, seq, topic, payload, reason in rows
            if isinstance(payload, bytes) and is_denial(reason) and (topics is None or topic in topics)
        ]

    def forget_denied(self, numbers: Sequence[int]) -> None:
        """These are events again."""
        with Transaction(self._sql):
            self._sql.executemany("DELETE FROM quarantine WHERE id = ?", [(number,) for number in numbers])

    def close(self, bounds: Mapping[str, int] | None = None, mark: AgeMark | None = None) -> None:
        """Give the file back; in an orderly way with exact bounds and the time. Never raises."""
        if bounds is not None and mark is not None:
            # Where that fails the next start finds the file as after a kill.
            with contextlib.suppress(sqlite3.Error), Transaction(self._sql):
                self._sql.executemany("INSERT OR REPLACE INTO camera VALUES (?, ?)", bounds.items())
                self._note(mark, is_orderly=True)
        with contextlib.suppress(sqlite3.Error):
            self._sql.close()

    def _prepare(self) -> None:
        run = self._sql.execute
        run("PRAGMA locking_mode = EXCLUSIVE")  # no second process, and no shared memory that a crash leaves behind
        run(f"PRAGMA page_size = {_PAGE_BYTES}")
        self._begin_log()
        run("PRAGMA synchronous = FULL")
        run(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        run(f"PRAGMA journal_size_limit = {_LOG_PAGES * _PAGE_BYTES}")
        version = self._number("PRAGMA user_version")
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"its version is {version}, expected {_VERSION}")
        [found] = run("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(str(found).splitlines()[0])
        self._is_too_large = self._bound() > self._max_pages
        with Transaction(self._sql):  # with it the lock is taken, and it shows whether the disk takes anything
            for statement in TABLES.split(";"):
                run(statement)
            run(f"PRAGMA user_version = {_VERSION}")

    def _bound(self) -> int:
        """Let it grow no further than to its bound, or than it is; that many pages."""
        return self._number(f"PRAGMA max_page_count = {self._max_pages}")

    def _begin_log(self) -> None:
        self._sql.execute("PRAGMA journal_mode = WAL")
        with Transaction(self._sql):
            pass  # not before it is the log there
        self._place = Place(self._path)

    def _note(self, mark: AgeMark, *, is_orderly: bool) -> None:
        rows = (("mark", msgspec.json.encode(mark).decode()), ("is_orderly", str(int(is_orderly))))
        self._sql.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def _drop(self, condition: str, values: tuple[object, ...]) -> list[int]:
        with Transaction(self._sql):
            gone = self._delete(condition, values)
        self._count_out(gone)
        return [number for number, _ in gone]

    def _delete(self, condition: str, values: tuple[object, ...]) -> list[tuple[int, str]]:
        """Ids and cameras of what is gone, once the transaction is through."""
        found = self._sql.execute(f"SELECT id, camera FROM event WHERE {condition}", values)  # noqa: S608 - our own words
        gone: list[tuple[int, str]] = found.fetchall()
        if gone:
            self._sql.execute(f"DELETE FROM event WHERE {condition}", values)  # noqa: S608 - the same
        return gone

    def _count_out(self, gone: Sequence[tuple[int, str]]) -> None:
        for _, camera in gone:
            self._counts[camera] -= 1

    def _used_pages(self) -> int:
        return self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count")

    def _number(self, statement: str) -> int:
        number: int = self._sql.execute(statement).fetchone()[0]
        return number
