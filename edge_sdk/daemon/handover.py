"""Handover: a pipeline's source, which is closed at its end, or left for the one that takes its place."""

from __future__ import annotations

import threading
from collections.abc import Callable

from edge_sdk.camera import OpenedSource

_LOOK_S = 0.05  # how soon the end of the process is seen


class Handover:
    """Of one pipeline's source; `give` is called by its own thread, the rest by others.

    Args:
        is_ending: whether the whole process comes to its end, so that nobody goes on with a source.
    """

    def __init__(self, is_ending: Callable[[], bool]) -> None:
        self._is_ending = is_ending
        self._lock = threading.Lock()
        self._is_wanted = self._is_given = False
        self._done = threading.Event()
        self._left: OpenedSource | None = None

    def want(self) -> None:
        """Have it left, and not closed."""
        with self._lock:
            self._is_wanted = True

    def give(self, source: OpenedSource) -> None:
        """Read it no more: it is left, or closed; only the first call counts."""
        with self._lock:
            if self._is_given:
                return
            self._is_given = True
            is_left = self._is_wanted and not self._is_ending()
            if is_left:
                self._left = source
        if not is_left:
            source.close()
        self._done.set()

    def end(self) -> None:
        """Nothing more will be given."""
        self._done.set()

    def take(self, is_stopped: Callable[[], bool]) -> OpenedSource | None:
        """Wait for it; None where it was closed, or never open.

        Args:
            is_stopped: once True, it is not waited for any more, and closed when it comes.
        """
        self.want()
        while not is_stopped() and not self._done.wait(_LOOK_S):
            pass
        return self._left_until_now()

    def close_left(self) -> None:
        """Close what was left, or will be, and not taken."""
        left = self._left_until_now()
        if left is not None:
            left.close()

    def _left_until_now(self) -> OpenedSource | None:
        with self._lock:
            self._is_wanted = False
            left, self._left = self._left, None
            return left
