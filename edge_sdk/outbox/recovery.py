"""Opens the file of an outbox, and salvages one that is damaged.

`open_store` distinguishes a failing disk, which may recover, from a damaged file, which it salvages:

1. SQLite silently stops at the first damaged frame of a log. The state that it will find is therefore compared with
   the newest state in the frames after it and in the commit record.
2. Every version of every page, in the file and in its log, is searched for events whose checksum is right, and the
   newest state tells which of them should be there. The events found are written to `.salvage-tmp`.
3. That file is synced and renamed to `.salvaged`. After an interruption before this, salvage begins again, because
   nothing was deleted or renamed.
4. The damaged file is renamed to `.damaged`, and `.salvaged` to the file. After an interruption this step is resumed.

`put_back` takes the last two steps with a copy of a file that was removed or replaced while it was open. The file that
replaced it becomes `.replaced-1`, or the next free number: it may hold events, and salvage did not read them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from edge_sdk.core.errors import descriptor_shortage
from edge_sdk.outbox.event import OutboxSettings, QueuedEvent
from edge_sdk.outbox.store import (
    PAGE_BYTES,
    PUT_EVENT,
    PUT_QUARANTINE,
    PUT_STATE,
    QUARANTINE_ROWS,
    SALVAGED,
    STORE_VERSION,
    TABLES,
    CommitRecord,
    CommitState,
    EventStore,
    event_of,
    quarantine_row_of,
    quarantined_of,
    row_of,
    unsealed,
)

_LOG, _TMP, _ASIDE = "-wal", ".salvage-tmp", ".damaged"
_REPLACED, _MOST_REPLACED = ".replaced-", 9  # they may hold events, so that none is overwritten or removed
# SQLite's messages about a failing disk, matched as text because Python 3.10 does not give the codes.
_OF_THE_DISK = ("disk is full", "disk I/O error", "readonly", "unable to open", "locked", "out of memory")
# The formats: https://www.sqlite.org/fileformat2.html, 1.6 (pages), 2.1 (records), 4.1 (log).
_LOG_HEAD, _FRAME_HEAD = 32, 24  # bytes
_FRAME_BYTES = _FRAME_HEAD + PAGE_BYTES
_TABLE_LEAF = 0x0D
_MOST_LOCAL = PAGE_BYTES - 35  # largest record that its page holds as a whole, in bytes; of a larger one ...
_LEAST_LOCAL = (PAGE_BYTES - 12) * 32 // 255 - 23  # ... the page holds at least these bytes
_MORE_BYTES = PAGE_BYTES - 4  # bytes of a record in an overflow page
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)  # bytes of a value by its serial type, 0 to 9; type 7 is a float
_COLUMNS, _STATE_COLUMNS = 7, 2  # number of columns of events and quarantine, and of the state
_NO_PLACES: Mapping[int, int] = {}


class DiskTroubleError(Exception):
    """The disk cannot be written at present; the message gives the reason and what to do."""


def open_store(path: Path, settings: OutboxSettings, damage: str = "") -> EventStore:
    """Open the file; salvage one that is damaged, also by the known `damage`, into a new one that tells the outcome.

    Raises:
        DiskTroubleError: neither is possible now, but may be later.
    """
    max_bytes = int(settings.max_mb * 1e6)
    with _said(path):
        _make_folder(path, settings)
        record = CommitRecord(path)
        try:
            if _put_in_place(path):
                damage = ""  # it was that of the file before
            _beside(path, _TMP).unlink(missing_ok=True)  # left by an interrupted salvage
            damage = damage or _damage_of_log(path, record)
            if not damage:
                try:
                    return EventStore(path, max_bytes, record)
                except sqlite3.Error as cause:
                    if (trouble := disk_trouble(cause, path)) is not None:
                        raise trouble from cause
                    damage = str(cause)
            _salvage(path, record, damage)
            _put_in_place(path)
            return EventStore(path, max_bytes, record)
        except BaseException:
            record.close()
            raise


def put_back(store: EventStore, path: Path, settings: OutboxSettings) -> str:
    """Write a copy of an open file to its path, from which it was removed; the caller then opens the path again.

    Returns:
        The name under which a file that had replaced it is kept; empty where there was none.
    """
    with _said(path):
        _make_folder(path, settings)
        with _new_file(path) as tmp:
            store.copy_to(tmp)
            endings = (f"{_REPLACED}{number}" for number in range(1, _MOST_REPLACED + 1))
            ending = next((ending for ending in endings if not _beside(path, ending).exists()), None)
            if ending is None:
                advice = f"remove {path.name}{_REPLACED}1 and so on"
                raise DiskTroubleError(f"{path} was replaced {_MOST_REPLACED} times; {advice}")
            is_replaced = path.exists()
            if is_replaced:
                _move(path, _beside(path, ending))
        _put_in_place(path)
        return _beside(path, ending).name if is_replaced else ""


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """Turn errors of the disk within the context into a `DiskTroubleError`."""
    try:
        yield
    except OSError as cause:
        raise DiskTroubleError(_advised(path, cause.strerror or str(cause))) from cause
    except sqlite3.Error as cause:
        raise DiskTroubleError(_advised(path, str(cause))) from cause


def _make_folder(path: Path, settings: OutboxSettings) -> None:
    if want := settings.place_error():
        raise DiskTroubleError(want)
    path.parent.mkdir(mode=0o700, parents=settings.folder is None, exist_ok=True)


def disk_trouble(error: sqlite3.Error, path: Path) -> DiskTroubleError | None:
    """Return the error to raise for a failing disk; None where the file is damaged."""
    said = str(error)
    if not isinstance(error, sqlite3.OperationalError) or not any(words in said for words in _OF_THE_DISK):
        return None
    if "readonly" in said and _is_writable(path):
        return None  # a damaged header gives the same message
    return DiskTroubleError(_advised(path, said))


def _advised(path: Path, said: str) -> str:
    lower = said.lower()
    if shortage := descriptor_shortage():
        return f"{path}: {shortage}"
    if "full" in lower or "no space" in lower:
        advice = "free some space on this disk"
    elif "locked" in lower:
        return f"{path}: another program uses this file; give each its own device name (--device, device=)"
    elif "read" in lower and "only" in lower:
        advice = "mount this disk for writing"
    elif "denied" in lower or "not permitted" in lower or "unable to open" in lower:
        advice = "let this program's user write there"
    else:
        advice = "look after this disk"
    return f"{path}: {said}; {advice}"


def _is_writable(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _damage_of_log(path: Path, record: CommitRecord) -> str:
    """Return in words why SQLite would not find the last commit; empty if it will find it."""
    found = _found_by_sqlite(path)
    with closing(_Pages(path)) as pages:
        newest = _newest([*map(pages.state_in, pages.committed()), found], record)
    if newest is None or (found is not None and found.number >= newest.number):
        return ""
    if found is None:
        return "what it says of its last commit cannot be read" if path.exists() else "it was removed"
    return f"its log has {newest.number - found.number} commits that cannot be read in order, or not at all"


def _found_by_sqlite(path: Path) -> CommitState | None:
    """Return the state that SQLite reads, without letting it copy the log into the file or remove the log."""
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", timeout=0.0, uri=True)) as sql:
            row = sql.execute("SELECT body FROM state").fetchone()
    except sqlite3.Error as cause:
        if (trouble := disk_trouble(cause, path)) is not None:
            raise trouble from cause
        return None
    finally:
        _beside(path, "-shm").unlink(missing_ok=True)
    return unsealed(row and row[0])


def _newest(states: Sequence[CommitState | None], record: CommitRecord) -> CommitState | None:
    """Return the newest of the states found in a file and the recorded state, which may belong to another file."""
    found = max(filter(None, states), key=lambda state: state.number, default=None)
    recorded = record.read()
    if found is None or recorded is None or recorded.file != found.file:
        return found or recorded
    return max(found, recorded, key=lambda state: state.number)


def _salvage(path: Path, record: CommitRecord, complaint: str) -> None:
    """Write the readable content of a damaged file into a new file in the same folder, all of it or nothing."""
    with (
        _new_file(path) as tmp,
        closing(_Pages(path)) as pages,
        closing(sqlite3.connect(tmp, isolation_level=None)) as sql,
    ):
        has_aside = path.exists() or _beside(path, _LOG).exists()
        _fill(sql, pages, record, complaint, _beside(path, _ASIDE).name if has_aside else "")


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """Create a file to be filled within the context; `_put_in_place` then replaces the old file with it."""
    tmp = _beside(path, _TMP)
    os.close(os.open(tmp, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    try:
        yield tmp
        _sync(tmp)
        tmp.replace(_beside(path, SALVAGED))
        _sync(path.parent)
    except BaseException:
        tmp.unlink(missing_ok=True)  # frees its bytes, which a full disk needs
        raise


def _fill(sql: sqlite3.Connection, pages: _Pages, record: CommitRecord, complaint: str, aside: str) -> None:
    """Write the events, the quarantine and the state that the pages hold into a new file."""
    # One transaction without a journal is enough, because only a complete file is ever used.
    for pragma in (
        f"page_size = {PAGE_BYTES}",
        "journal_mode = OFF",
        "synchronous = OFF",
        f"user_version = {STORE_VERSION}",
    ):
        sql.execute(f"PRAGMA {pragma}")
    sql.execute("BEGIN")
    for statement in TABLES.split(";"):
        sql.execute(statement)
    places = pages.leaves()
    state = _newest([pages.state_in(place) for place in places], record) or CommitState(file="")
    known, bounds = state.last_id, dict(state.bounds)
    asides: dict[tuple[str, int], tuple[QueuedEvent, str]] = {}

    def rows() -> Iterator[tuple[object, ...]]:
        for place in places:
            for row in pages.rows(place):
                if len(row) != _COLUMNS:
                    continue
                event = event_of(row, state.epoch)
                if event is not None and state.has(event.id, event.camera):
                    if event.id > known:  # from a commit after the state: its number must not be given again
                        bounds[event.camera] = max(event.seq + 1, bounds.get(event.camera, 0))
                    yield row_of(event, 0)
                elif event is None and (found := quarantined_of(row)) is not None:
                    asides[found[0].camera, found[0].seq] = found

    sql.executemany(PUT_EVENT.replace("INSERT", "INSERT OR IGNORE"), rows())
    newest = sorted(asides.values(), key=lambda found: found[0].id)[-QUARANTINE_ROWS:]
    sql.executemany(PUT_QUARANTINE, (quarantine_row_of(*found) for found in newest))
    [last_id, count] = sql.execute("SELECT coalesce(max(id), 0), count(*) FROM event").fetchone()
    [expected] = sql.execute("SELECT count(*) FROM event WHERE id <= ?", (known,)).fetchone()
    state.missing += max(0, state.count - expected)
    state.file, state.epoch, state.gone, state.is_orderly = uuid.uuid4().hex, 0, [], False
    state.last_id, state.count, state.bounds = max(last_id, known), count, bounds
    state.salvaged, state.complaint, state.aside = count, complaint, aside
    sql.execute(PUT_STATE, (state.sealed(),))
    sql.execute("COMMIT")


def _put_in_place(path: Path) -> bool:
    """Set a file aside and put the new one in its place, if there is a new one; may be repeated at any point."""
    salvaged = _beside(path, SALVAGED)
    if not salvaged.exists():
        return False
    if path.exists():
        _beside(path, _ASIDE + _LOG).unlink(missing_ok=True)  # log of an earlier damaged file
    _move(path, _beside(path, _ASIDE))
    salvaged.replace(path)
    _sync(path.parent)
    return True


def _move(path: Path, to: Path) -> None:
    """Rename a file and its log, as far as they are there."""
    for ending in ("", _LOG):
        if _beside(path, ending).exists():
            _beside(path, ending).replace(_beside(to, ending))


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Pages:
    """Every version of every page of a file and its log; either may be damaged or missing.

    A place is the index of a page in the file, or -1 minus the index of a frame in the log.
    """

    def __init__(self, path: Path) -> None:
        log = _beside(path, _LOG)
        self._log = log.read_bytes() if log.exists() else b""
        self._file = path.open("rb", buffering=0) if path.exists() else None
        self._frames = max(0, len(self._log) - _LOG_HEAD) // _FRAME_BYTES
        self._count = -(-path.stat().st_size // PAGE_BYTES) if self._file is not None else 0
        # Frames after those with the salts of the first belong to earlier logs, which are older than the file.
        salts = [self._log[start + 8 : start + 16] for start in map(_frame_at, range(self._frames))]
        places = [-1 - frame for frame, of in enumerate(salts) if of == salts[0]]
        self._newest = {self.number(place): place for place in places}

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def number(self, place: int) -> int:
        """Return the number of the page at a place, from 1."""
        start = _frame_at(-1 - place)
        return place + 1 if place >= 0 else int.from_bytes(self._log[start : start + 4], "big")

    def committed(self) -> list[int]:
        """Return the places of the log's frames, also damaged ones, up to the last with their salts that commits."""
        heads = [self._log[start : start + 16] for start in map(_frame_at, range(self._frames))]
        ends = {head[8:]: frame for frame, head in enumerate(heads) if any(head[4:8])}
        return [-1 - frame for frame, head in enumerate(heads) if frame <= ends.get(head[8:], -1)]

    def state_in(self, place: int) -> CommitState | None:
        """Return the state in a page; None where the page has no intact state."""
        rows = takewhile(lambda row: len(row) == _STATE_COLUMNS, self.rows(place))
        return next(filter(None, (unsealed(row[1]) for row in rows)), None)

    def leaves(self) -> list[int]:
        """Return the places of pages that may hold rows, those with the smallest ids first."""
        found = []
        for place in range(-self._frames, self._count):
            page = self._page(place)
            if page[0] == _TABLE_LEAF:
                try:
                    _, at = _varint(page, int.from_bytes(page[8:10], "big"))
                    found.append((_varint(page, at)[0], place))
                except IndexError:  # the first row is damaged
                    found.append((0, place))
        return [place for _, place in sorted(found)]

    def rows(self, place: int) -> Iterator[Sequence[Any]]:
        """Yield the possible rows of a page, each with its id as the first value."""
        page = self._page(place)
        if page[0] != _TABLE_LEAF:
            return
        for pointer in range(8, min(8 + 2 * int.from_bytes(page[3:5], "big"), PAGE_BYTES), 2):
            with contextlib.suppress(IndexError, ValueError):  # the row is damaged
                yield from self._versions(page, int.from_bytes(page[pointer : pointer + 2], "big"))

    def _versions(self, page: bytes, at: int) -> Iterator[Sequence[Any]]:
        """Yield the row at a byte of a page; where it continues in overflow pages, once for each version of those."""
        size, at = _varint(page, at)
        number, at = _varint(page, at)
        if size <= _MOST_LOCAL:
            yield [number, *_values(page[at : at + size])[1:]]
            return
        local = _LEAST_LOCAL + (size - _LEAST_LOCAL) % _MORE_BYTES
        local = local if local <= _MOST_LOCAL else _LEAST_LOCAL
        following = int.from_bytes(page[at + local : at + local + 4], "big")
        for newest in (self._newest, _NO_PLACES):
            with contextlib.suppress(IndexError, ValueError):
                more = self._more(following, size - local, newest)
                yield [number, *_values(page[at : at + local] + more)[1:]]

    def _more(self, number: int, size: int, newest: Mapping[int, int]) -> bytes:
        """Return the rest of a row from its chain of overflow pages."""
        parts: list[bytes] = []
        while len(parts) * _MORE_BYTES < size:
            if not number or len(parts) > self._count + self._frames:
                raise IndexError
            page = self._page(newest.get(number, number - 1))
            number = int.from_bytes(page[:4], "big")
            parts.append(page[4:])
        return b"".join(parts)[:size]

    def _page(self, place: int) -> bytes:
        if place < 0:
            end = _frame_at(-place)
            return self._log[end - PAGE_BYTES : end]
        data = os.pread(self._file.fileno(), PAGE_BYTES, place * PAGE_BYTES) if self._file is not None else b""
        return data.ljust(PAGE_BYTES, b"\0")


def _frame_at(index: int) -> int:
    return _LOG_HEAD + index * _FRAME_BYTES


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a variable-length integer (7 bits a byte, 8 in the ninth); return it and the index after it."""
    value = 0
    for end in range(at, at + 8):
        value = value << 7 | data[end] & 0x7F
        if data[end] < 0x80:
            return value, end + 1
    return value << 8 | data[at + 8], at + 9


def _values(record: bytes) -> list[Any]:
    """Return the values of a record, which holds the types of all values and then their bytes."""
    values: list[Any] = []
    types_end, at = _varint(record, 0)
    end = types_end
    while at < types_end and len(values) <= _COLUMNS:
        kind, at = (record[at], at + 1) if record[at] < 0x80 else _varint(record, at)
        size = _INTEGER_BYTES[kind] if kind < len(_INTEGER_BYTES) else (kind - 12) // 2
        data, end = record[end : end + size], end + size
        if len(data) != size:
            raise IndexError
        if kind >= 12:
            values.append(data.decode() if kind % 2 else data)
        elif kind == 7:
            values.append(struct.unpack(">d", data)[0])
        else:
            values.append({0: None, 8: 0, 9: 1}.get(kind, int.from_bytes(data, "big", signed=True)))
    return values
