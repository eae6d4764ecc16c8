"""Settings of the event outbox: where events wait for the broker, how many, and for how long."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
from msgspec import Meta

from edge_sdk.core.files import state_folder

_MEMORY_BYTES = 4_000_000


class OutboxConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[outbox]` of a configuration file: where events wait for the broker.

    Attributes:
        folder: the folder of the file. It is made if missing, but not its parents, because a missing parent may be a
            disk that is not mounted. None: the folder where the device keeps its state.
        max_mb: 10^6 bytes that the file may take, at least 1; SQLite's journal takes 1 MB more.
        max_age_days: days that an event may wait; time in which the device is off does not count.
    """

    folder: Annotated[Path, Meta(description="where events wait on disk for the broker")] | None = None
    max_mb: Annotated[
        float, Meta(ge=1, le=1e9, description="10^6 bytes that the file may take", extra={"unit": "megabytes"})
    ] = 64.0
    max_age_days: Annotated[
        float,
        Meta(
            gt=0,
            le=1e9,
            description="days that an event may wait, without those the device is off",
            extra={"unit": "days"},
        ),
    ] = 14.0


class OutboxSettings(OutboxConfig, frozen=True, kw_only=True):
    """Bounds of an event outbox: the keys of the configuration file, and two that no file sets.

    Attributes:
        max_memory_bytes: bytes of events that may wait in memory for the disk.
        commit_s: longest time from `put` to the beginning of a commit, seconds.
    """

    max_memory_bytes: int = _MEMORY_BYTES
    commit_s: float = 0.03

    @property
    def max_age_s(self) -> float:
        """Seconds that an event may wait."""
        return self.max_age_days * 86400

    def path_of(self, site: str, device: str) -> Path:
        """Return the path of one device's file; only one process may use it at a time.

        Raises:
            OutputError: no folder is given, and there is no state folder.
        """
        folder = state_folder() / "outbox" if self.folder is None else self.folder
        return folder / f"events-{quote(site, safe='')}-{quote(device, safe='')}.sqlite"  # a name may be `..`

    def place_error(self) -> str:
        """Return why the configured folder cannot be used, and what to do; empty where no reason is known."""
        if self.folder is None:
            return ""
        return folder_error(self.folder if os.path.lexists(self.folder) else self.folder.parent)


def folder_error(folder: Path) -> str:
    """Return why a path is not a folder, and what to do; empty where it is one, or where that cannot be checked."""
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the name contains a NUL
        return f"{folder}: no such folder; make it, or mount the disk that has it"
    except OSError:
        return ""
    return "" if is_folder else f"{folder} is a file, name a folder"
