"""Wakeup: lets one thread end another one's wait.

Owns an event for a thread that waits for nothing else, and a pipe for one that waits for the network as well.
"""

from __future__ import annotations

import contextlib
import os
import threading


class Wakeup:
    """A bell that is heard in both kinds of wait."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._is_open = True
        self._lock = threading.Lock()  # a closed descriptor's number soon belongs to somebody else

    def ring(self) -> None:
        """End `wait`. Keeps the interpreter's lock, so that the caller goes on first."""
        self._event.set()

    def wake(self) -> None:
        """End `wait` and a poll of `fileno`; never blocks, and does nothing after `close`."""
        self._event.set()
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._is_open:
                os.write(self._writer, b"\0")

    def wait(self, timeout_s: float) -> None:
        """Wait for a ring, and forget it."""
        self._event.wait(timeout_s)
        self._event.clear()

    def fileno(self) -> int:
        """What to poll for reading."""
        return self._reader

    def clear(self) -> None:
        """Forget what can be read."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def close(self) -> None:
        """Give the pipe back; may be called twice."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._reader)
                os.close(self._writer)
