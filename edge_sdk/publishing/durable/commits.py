"""Commits: up to which event all are safe, who waits for that, and whether one was lost before it was."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from edge_sdk.publishing.durable.held import Held


class Commits:
    """Of one outbox.

    Args:
        lock: of the shelf; who calls anything but `wait` and `newest_seq` has it.

    Attributes:
        safe_to: an id; all events up to it are on disk, through, or lost.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._is_further = threading.Condition(lock)
        self._newest: dict[str, int] = {}
        self.safe_to = 0
        self._losses = 0
        self._told = threading.local()

    def newest_seq(self, camera: str) -> int | None:
        """The newest number that a commit has written down."""
        return self._newest.get(camera)

    def keep(self, events: Sequence[Held], to: int) -> None:
        """A commit has written these down, and all up to an id are safe."""
        for event in events:  # an older number comes behind a newer one where it is offered again
            self._newest[event.camera] = max(event.seq, self._newest.get(event.camera, event.seq))
        if to > self.safe_to:
            self.safe_to = to
            self._is_further.notify_all()

    def lose(self) -> None:
        """Something was lost before it was safe."""
        self._losses += 1

    def wait(self, timeout_s: float, put_id: int) -> bool:
        """Wait, with the lock, until all up to an id are safe; see `EventOutbox.wait_committed`.

        What was lost is told to each thread by itself, once: the event that one misses may be another's.
        """
        if not self._is_further.wait_for(lambda: self.safe_to >= put_id, timeout_s):
            return False
        told, self._told.losses = getattr(self._told, "losses", 0), self._losses
        return told == self._losses
