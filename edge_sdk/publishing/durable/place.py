"""Place: where an open file of SQLite and its log are, for somebody may remove or replace them meanwhile."""

from __future__ import annotations

import contextlib
from pathlib import Path

SALVAGED = ".salvaged"
"""Ends the name of a file that is complete and about to be put in the place of a damaged one."""


def is_there(path: Path) -> bool:
    """Whether there is a file to be opened, or one that is to be put in its place."""
    return path.exists() or path.with_name(path.name + SALVAGED).exists()


class Place:
    """Of one open file; taken when it and its log are there.

    Args:
        path: of the file.

    Raises:
        OSError: one of them is not there.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._log = path, path.with_name(path.name + "-wal")
        self._file_id, self._log_id = _id_of(path), _id_of(self._log)

    @property
    def has_file(self) -> bool:
        """Whether the file is still at its path."""
        return _is_at(self._path, self._file_id)

    @property
    def has_log(self) -> bool:
        """Whether the log is still beside it."""
        return _is_at(self._log, self._log_id)

    def free(self) -> None:
        """Take the log away: SQLite would write it into another file at this path."""
        if self.has_log:
            with contextlib.suppress(OSError):
                self._log.unlink()


def _id_of(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _is_at(path: Path, file_id: tuple[int, int]) -> bool:
    try:
        return _id_of(path) == file_id
    except OSError as cause:
        return not isinstance(cause, FileNotFoundError | NotADirectoryError)  # of the others nobody can tell
