"""Recovery: opens the file of an outbox whatever became of it.

Owns the telling apart of a disk that takes nothing, which may pass, from a file that is damaged, which does not: that
one is put aside, and what can still be read of it goes into a new one.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import msgspec

from edge_sdk.publishing.durable.salvage import salvage
from edge_sdk.publishing.durable.settings import OutboxSettings
from edge_sdk.publishing.durable.store import EventStore
from edge_sdk.publishing.shortage import of_descriptors

_LOG = "-wal"
_KEPT_ASIDE = 2
# What SQLite says of a disk; by its words, because Python 3.10 does not give the codes.
_OF_THE_DISK = ("disk is full", "disk I/O error", "readonly", "unable to open", "locked", "out of memory")


class DiskTroubleError(Exception):
    """The disk takes nothing at present; one line, with what to do."""


class Opened(msgspec.Struct, frozen=True):
    """What opening came to.

    Attributes:
        store: to be used.
        set_aside: the damaged file, under its new name; None where there was none.
        complaint: what was wrong with that.
        salvaged: events that could be read there, and are in the new one.
    """

    store: EventStore
    set_aside: Path | None = None
    complaint: str = ""
    salvaged: int = 0


def open_store(path: Path, settings: OutboxSettings, damage: str = "") -> Opened:
    """Open the file, or begin a new one where it is damaged.

    Args:
        path: of the file.
        settings: its bound, and whether what is above its folder may be made.
        damage: what is known to be wrong with it; empty where that is to be found out.

    Raises:
        DiskTroubleError: neither is possible now; it may be later.
    """
    max_bytes = int(settings.max_mb * 1e6)
    if want := settings.want_of_place():
        raise DiskTroubleError(want)
    try:
        path.parent.mkdir(mode=0o700, parents=settings.folder is None, exist_ok=True)
        if not damage:
            try:
                return Opened(EventStore(path, max_bytes))
            except sqlite3.Error as cause:
                if (trouble := disk_trouble(cause, path)) is not None:
                    raise trouble from cause
                damage = str(cause)
        return _begun_anew(path, max_bytes, damage)
    except OSError as cause:
        raise DiskTroubleError(_advised(path, cause.strerror or str(cause))) from cause
    except sqlite3.Error as cause:
        raise DiskTroubleError(_advised(path, str(cause))) from cause


def _begun_anew(path: Path, max_bytes: int, complaint: str) -> Opened:
    aside = _put_aside(path)
    store = EventStore(path, max_bytes)
    try:
        return Opened(store, aside, complaint, salvage(aside, store))
    except BaseException:
        store.close()
        raise


def disk_trouble(error: sqlite3.Error, path: Path) -> DiskTroubleError | None:
    """What to say of a disk that took nothing; None where it is the file that is damaged."""
    said = str(error)
    if not isinstance(error, sqlite3.OperationalError) or not any(words in said for words in _OF_THE_DISK):
        return None
    if "readonly" in said and _is_writable(path):
        return None  # so says a damaged header, too
    return DiskTroubleError(_advised(path, said))


def _advised(path: Path, said: str) -> str:
    lower = said.lower()
    if shortage := of_descriptors():
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


def _put_aside(path: Path) -> Path:
    """Rename a file with its log; of those put aside before it one is kept."""
    number = 1 + max((_number_of(other) for other in _aside(path)), default=0)
    target = path.with_name(f"{path.name}.damaged-{number}")
    log = path.with_name(path.name + _LOG)
    if log.exists():
        log.replace(target.with_name(target.name + _LOG))  # first: a new file must never meet an old log
    path.replace(target)
    for old in _aside(path):
        if _number_of(old) <= number - _KEPT_ASIDE:
            for name in (old, old.with_name(old.name + _LOG)):
                name.unlink(missing_ok=True)
    return target


def _aside(path: Path) -> list[Path]:
    return [p for p in path.parent.glob(f"{_escaped(path.name)}.damaged-*") if _number_of(p)]


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _number_of(aside: Path) -> int:
    ending = aside.name.rpartition("-")[2]
    return int(ending) if ending.isdecimal() else 0
