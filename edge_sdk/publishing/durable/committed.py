"""What an outbox's file should hold: `State` is part of each commit, and `CommitRecord` has the newest beside the file.

A log that lost its end looks like one in which nothing more was ever written; the record tells the two apart.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import zlib
from pathlib import Path

import msgspec

from edge_sdk.publishing.durable.age_clock import AgeMark

_ENDING = "-committed"
_HEAD_BYTES = 8  # length and CRC-32 of what follows
_MOST_BYTES = 1_000_000


class State(msgspec.Struct, kw_only=True):
    """What is true of the whole file after a commit.

    The ids in the file are those from `done_to` (exclusive) to `last_id`, without those of `gone`.

    Attributes:
        file: a random name of the file, another one after a salvage.
        number: of the commit; the first is 1.
        epoch: part of every row's checksum; another one makes rows void that lie in pages which are not used any more.
        owner: the process that gives the ids.
        last_id: the largest id that was ever in the file.
        done_to: the broker has all events up to this id, or never gets them.
        gone: (camera, after, to): events of this camera, or of all where it is empty, are not in the file if their ids
            are above `after` and not above `to`.
        count: events in the file.
        bounds: no event of a camera has this number or a higher one.
        mark: of the time; None before the first commit of a process.
        is_orderly: whether the process that wrote this had closed the file, so that the bounds are exact.
        missing: events that a salvage did not find, until they are counted as lost.
        salvaged: events that it found.
        complaint: what was wrong with the file that was salvaged; empty where that has been said, or nothing was.
        aside: the name under which that file is kept; empty where there was none.
    """

    file: str
    number: int = 0
    epoch: int = 0
    owner: str = ""
    last_id: int = 0
    done_to: int = 0
    gone: list[tuple[str, int, int]] = []
    count: int = 0
    bounds: dict[str, int] = {}
    mark: AgeMark | None = None
    is_orderly: bool = False
    missing: int = 0
    salvaged: int = 0
    complaint: str = ""
    aside: str = ""

    def has(self, number: int, camera: str) -> bool:
        """Whether an event is in the file; one that this state is too old to know counts as being there."""
        return number > self.done_to and not any(
            after < number <= to and name in ("", camera) for name, after, to in self.gone
        )

    def leave_out(self, camera: str, after: int, to: int) -> None:
        """Note that events are not in the file any more; see `gone`."""
        kept = []
        for entry in self.gone:
            name, other_after, other_to = entry
            if name == camera and other_after <= to and after <= other_to:
                after, to = min(after, other_after), max(to, other_to)
            else:
                kept.append(entry)
        self.gone = [*kept, (camera, after, to)]

    def finish(self, done_to: int) -> None:
        """Note that all events up to an id are through."""
        self.done_to = max(self.done_to, done_to)
        self.gone = [entry for entry in self.gone if entry[2] > self.done_to]

    def sealed(self) -> bytes:
        """This state with its length and its checksum."""
        content = msgspec.json.encode(self)
        return len(content).to_bytes(4, "big") + zlib.crc32(content).to_bytes(4, "big") + content


def unsealed(sealed: object) -> State | None:
    """The state that `State.sealed` made these bytes of, which others may follow; None where they are damaged."""
    if not isinstance(sealed, bytes):
        return None
    content = sealed[_HEAD_BYTES : _HEAD_BYTES + int.from_bytes(sealed[:4], "big")]
    if zlib.crc32(content) != int.from_bytes(sealed[4:_HEAD_BYTES], "big"):
        return None
    try:
        return msgspec.json.decode(content, type=State)
    except msgspec.MsgspecError:
        return None


class CommitRecord:
    """The state of the last commit, in a small file beside that of the events; and the lock of both.

    It is written after each commit, before anybody is told of it, and never synced: after a power cut it may be older
    than the file, and then says nothing; it never tells of a commit that had not returned.

    Args:
        path: of the file of events.

    Raises:
        sqlite3.OperationalError: somebody else has it open.
        OSError: it cannot be made or opened.
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

    def read(self) -> State | None:
        """The state; None where there is none that is whole."""
        return None if self._descriptor is None else unsealed(os.pread(self._descriptor, _MOST_BYTES, 0))

    def write(self, sealed: bytes) -> None:
        """Replace the state; where the disk does not take it, the one before stays, which is no wrong one."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, sealed, 0)

    def remove(self) -> None:
        """Give up the lock, and remove the file where it is still at its path."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self._descriptor), self._path.stat()):
                    self._path.unlink()
        self.close()

    def close(self) -> None:
        """Give up the lock; what is written later is ignored."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
