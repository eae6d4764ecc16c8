"""Disk: the file of an outbox while the disk takes it, does not, and does again.

Owns when it is tried again, and what is said. It is opened when it is needed, and begins anew where it is damaged.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from edge_sdk.publishing.backoff import Backoff
from edge_sdk.publishing.durable.committed import State
from edge_sdk.publishing.durable.held import Held
from edge_sdk.publishing.durable.recovery import DiskTroubleError, carry_over, disk_trouble, open_store
from edge_sdk.publishing.durable.settings import OutboxSettings
from edge_sdk.publishing.durable.store import AstrayError, EventStore

_FIRST_RETRY_S = 2.0
_LONGEST_RETRY_S = 30.0


class Disk:
    """Used by one thread.

    Args:
        path: of the file; None: no disk is wanted.
        settings: of the outbox.
        on_trouble: called with a name and a line; an empty one when the trouble is over.
        retry: how long to wait before the next attempt.

    Attributes:
        store: open, though it may take nothing at present; None while it cannot even be opened.
        astray: open too, but no longer at the path: what it has is still to go into the file that is there now.
        set_aside: damaged files that were put aside.
    """

    def __init__(
        self,
        path: Path | None,
        settings: OutboxSettings,
        on_trouble: Callable[[str, str], None],
        retry: Backoff | None = None,
    ) -> None:
        self.path, self._settings, self._on_trouble = path, settings, on_trouble
        self.store: EventStore | None = None
        self.astray: EventStore | None = None
        self.set_aside = 0
        self._retry = retry or Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        self._retry_at: float | None = None
        self._damage = self._said = ""

    @property
    def takes(self) -> bool:
        """Whether it is open and took what it was given last."""
        return self.store is not None and self._retry_at is None

    @property
    def due_s(self) -> float:
        """Seconds until it is to be tried again; infinity while nothing is wrong."""
        return math.inf if self._retry_at is None else max(0.0, self._retry_at - time.monotonic())

    @property
    def may_try(self) -> bool:
        """Whether it is worth giving it something now."""
        return self.path is not None and (self._retry_at is None or time.monotonic() >= self._retry_at)

    def open(self) -> EventStore | None:
        """Open it, or a new file in place of a damaged one; None where neither is possible now."""
        if self.path is None:
            return None
        if self.astray is not None and not self.astray.is_astray:  # moved back: it would be locked
            self.astray.close()
            self.astray = None
        try:
            self.store = open_store(self.path, self._settings, self._damage)
        except DiskTroubleError as trouble:
            self._damage = trouble.damage
            self._be_down(trouble)
            return None
        self._damage = ""
        return self.store

    def hasten(self) -> None:
        """Let the next attempt be made at once."""
        if self._retry_at is not None:
            self._retry_at = time.monotonic()

    def tell_salvage(self, state: State) -> None:
        """Say what came of a damaged file, in whose place the one that is open now is."""
        self.set_aside += 1
        kept = f"{state.salvaged} events were read from it" if state.salvaged else "no event could be read from it"
        aside = f" and is put aside as {state.aside}" if state.aside else ""
        self._on_trouble("outbox_damaged", f"{self.path} was damaged ({state.complaint}){aside}; {kept}")

    def worked(self) -> None:
        """It took what it was given."""
        if self._retry_at is not None:
            self._retry_at, self._said = None, ""
            self._on_trouble("outbox_disk", "")
        self._retry.reset()

    def failed(self, cause: sqlite3.Error) -> bool:
        """It did not.

        Returns:
            Whether the file itself is damaged or astray: opened again, a new one is begun in its place.
        """
        assert self.path is not None
        if isinstance(cause, AstrayError):
            self.astray, self.store = self.store, None
            return True
        trouble = disk_trouble(cause, self.path)
        if trouble is not None:
            self._be_down(trouble)
        else:
            self._damage = str(cause)
        # After an error of the device itself SQLite does not know what it has written.
        if trouble is None or "I/O" in str(cause):
            self.close()
        return trouble is None

    def carry_over(self, store: EventStore, after: int) -> list[Held]:
        """Copy what an astray file has after an id into the one that is open now; returns what was denied there."""
        denied: list[Held] = []
        if self.astray is not None:
            carried = carry_over(self.astray, store, after)
            with contextlib.suppress(sqlite3.Error):  # on a disk that is gone
                denied = self.astray.denied(None)
            self.astray.close()  # takes away what is the log at its path, which is another file's by now
            self.astray = None
            with contextlib.suppress(sqlite3.Error):
                store.look()
            line = f"{self.path} was removed or replaced while it was used; {carried} events were carried over"
            self._on_trouble("outbox_damaged", f"{line}; nothing else may touch it")
        return denied

    def close(self) -> None:
        """Give the file back, without an orderly end."""
        if self.store is not None:
            self.store.close()
            self.store = None

    def _be_down(self, trouble: DiskTroubleError) -> None:
        self._retry_at = time.monotonic() + self._retry.next_s()
        line = f"events wait in memory only: {trouble}"
        if line != self._said:
            self._said = line
            self._on_trouble("outbox_disk", line)
