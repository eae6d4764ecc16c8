"""MachineWatch: how the machine is, read once for all streams of a process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

from edge_sdk.daemon.core_watch import CoreWatch
from edge_sdk.throttling import BoardWatch


class Watches(NamedTuple):
    """What reads the board's state, and what reads the cores."""

    board: BoardWatch
    cores: CoreWatch


class MachineWatch:
    """Reads for as long as a stream looks at it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading: tuple[Watches, contextlib.ExitStack] | None = None
        self._lookers = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[Watches]:
        """The same for all who look at the same time."""
        with self._lock:
            watches, stack = self._reading = self._reading or _begin()
            self._lookers += 1
        try:
            yield watches
        finally:
            with self._lock:
                self._lookers -= 1
                if not self._lookers:
                    self._reading = None
                    stack.close()


def _begin() -> tuple[Watches, contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:  # there may be a thread for the first, and none for the second
        board = stack.enter_context(contextlib.closing(BoardWatch()))
        cores = stack.enter_context(contextlib.closing(CoreWatch()))
        return Watches(board, cores), stack.pop_all()
