"""OutboxSettings: where events wait for the broker, and how many for how long."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import msgspec

from edge_sdk.state_folder import state_folder

LEAST_MB = 1
"""Least bound of the file, 10^6 bytes."""

_MEMORY_BYTES = 4_000_000


class OutboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of an event outbox.

    Attributes:
        folder: of its file; None: where the device keeps its state.
        max_mb: 10^6 bytes that the file may take, at least `LEAST_MB`; SQLite's journal beside it is 1 MB more.
        max_age_s: seconds that an event may wait; time in which the device is off does not count.
        max_memory_bytes: what may wait in memory while the disk takes nothing, and on its way to it.
        commit_s: longest time from `put` to the beginning of a commit, seconds.
    """

    folder: Path | None = None
    max_mb: float = 64.0
    max_age_s: float = 14 * 86400.0
    max_memory_bytes: int = _MEMORY_BYTES
    commit_s: float = 0.03

    def path_of(self, site: str, device: str) -> Path:
        """The file of one device, for no two processes may use the same.

        Raises:
            OutputError: no folder is given, and there is none for state.
        """
        folder = state_folder() / "outbox" if self.folder is None else self.folder
        return folder / f"events-{quote(site, safe='')}-{quote(device, safe='')}.sqlite"  # a name may be `..`
