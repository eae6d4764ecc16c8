"""Where events wait for the broker, how many, and for how long."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import quote

import msgspec

from edge_sdk.core.files import state_folder

LEAST_MB = 1
"""Least bound of the file, 10^6 bytes."""

_MEMORY_BYTES = 4_000_000


class OutboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of an event outbox.

    Attributes:
        folder: the folder of its file. It is made where it is missing, but nothing above it: a disk that is not
            mounted must not be written beside. None: the folder where the device keeps its state.
        max_mb: 10^6 bytes that the file may take, at least `LEAST_MB`; SQLite's journal beside it is 1 MB more.
        max_age_s: seconds that an event may wait; time in which the device is off does not count.
        max_memory_bytes: bytes that may wait in memory for the disk.
        commit_s: longest time from `put` to the beginning of a commit, seconds.
    """

    folder: Path | None = None
    max_mb: float = 64.0
    max_age_s: float = 14 * 86400.0
    max_memory_bytes: int = _MEMORY_BYTES
    commit_s: float = 0.03

    def path_of(self, site: str, device: str) -> Path:
        """Return the file of one device; no two processes may use the same.

        Raises:
            OutputError: no folder is given, and there is none for state.
        """
        folder = state_folder() / "outbox" if self.folder is None else self.folder
        return folder / f"events-{quote(site, safe='')}-{quote(device, safe='')}.sqlite"  # a name may be `..`

    def place_error(self) -> str:
        """Return what keeps the folder that is named from being used, and what to do; empty where nothing is known."""
        if self.folder is None:
            return ""
        return folder_error(self.folder if os.path.lexists(self.folder) else self.folder.parent)


def folder_error(folder: Path) -> str:
    """Return why a path is no folder, and what to do; empty where it is one, or where we cannot see."""
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a NUL is in no name
        return f"{folder}: no such folder; make it, or mount the disk that has it"
    except OSError:
        return ""
    return "" if is_folder else f"{folder} is a file, name a folder"
