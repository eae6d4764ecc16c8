"""Salvage: what can still be read of a damaged file, or of one that is no longer at its path, goes into a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edge_sdk.publishing.durable.age_clock import AgeMark
from edge_sdk.publishing.durable.held import Held
from edge_sdk.publishing.durable.rows import READ, event_of
from edge_sdk.publishing.durable.store import EventStore

_AT_ONCE = 200  # rows of a commit
_AT_ONCE_BYTES = 100_000
_NO_MARK = AgeMark("", 0.0, 0.0)


def salvage(damaged: Path, store: EventStore) -> int:
    """Copy events, how far numbers were given, and the time.

    Args:
        damaged: a file that nobody else has open; may be anything.
        store: a new one. Of more than it may hold the oldest are left out.

    Returns:
        How many events were copied.

    Raises:
        sqlite3.Error: the new file cannot be written.
    """
    sql = sqlite3.connect(damaged, timeout=0.0, isolation_level=None)
    sql.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        store.bounds.update(_bounds(sql))
        store.mark = _mark(sql)
        _copy(sql, store)
    finally:
        sql.close()
    return len(store)


def carry_over(astray: EventStore, store: EventStore, after: int) -> int:
    """Copy events that come after an id, and how far numbers were given.

    Args:
        astray: open, but no longer at its path.
        store: open there; may have some of these events. Of more than it may hold the oldest are left out.
        after: all events up to this id are through.

    Returns:
        How many events were copied.

    Raises:
        sqlite3.Error: the file that is written to takes nothing.
    """
    there, copied, mark = store.ids_to(astray.last_id), 0, store.mark or astray.mark or _NO_MARK
    bounds = {name: max(bound, store.bounds.get(name, 0)) for name, bound in astray.bounds.items()}
    store.commit((), bounds, 0, mark)
    while after < astray.last_id:
        try:
            events, to, _ = astray.read_after(after, _AT_ONCE, _AT_ONCE_BYTES)
        except sqlite3.Error:  # astray on a disk that is gone
            break
        if to == after:
            break
        new = [event for event in events if event.id not in there]
        store.commit(new, {}, 0, mark)
        _make_room(store)
        copied, after = copied + len(new), to
    return copied


def _copy(sql: sqlite3.Connection, store: EventStore) -> None:
    mark = store.mark or _NO_MARK
    store.commit((), store.bounds, 0, mark)
    some: list[Held] = []
    for event in _events(sql):
        some.append(event)
        if len(some) == _AT_ONCE:
            store.commit(some, {}, 0, mark)
            some.clear()
            _make_room(store)
    store.commit(some, {}, 0, mark)
    _make_room(store)


def _make_room(store: EventStore) -> None:
    for _ in store.shed(0):
        pass


def _events(sql: sqlite3.Connection) -> Iterator[Held]:
    """Each once: what lies behind a damaged page is reached from the other end."""
    last_id = 0
    for order in ("ASC", "DESC"):
        try:
            for row in sql.execute(f"{READ} WHERE id > ? ORDER BY id {order}", (last_id,)):
                event = event_of(row)
                if event is not None:
                    yield event
                    last_id = max(last_id, event.id)
        except sqlite3.Error:
            continue
        return


def _bounds(sql: sqlite3.Connection) -> dict[str, int]:
    try:
        rows = sql.execute("SELECT name, bound FROM camera").fetchall()
    except sqlite3.Error:
        return {}
    return {name: bound for name, bound in rows if isinstance(name, str) and isinstance(bound, int)}


def _mark(sql: sqlite3.Connection) -> AgeMark | None:
    try:
        row = sql.execute("SELECT value FROM meta WHERE name = 'mark'").fetchone()
        return msgspec.json.decode(row[0], type=AgeMark) if row is not None else None
    except (sqlite3.Error, msgspec.MsgspecError, TypeError):
        return None
