"""Hangup: SIGHUP, with which a service manager asks a process to read its configuration again."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Hangup:
    """Whether it was asked since the last look."""

    def __init__(self) -> None:
        self._is_asked = False

    def ask(self) -> None:
        """Safe in a signal handler."""
        self._is_asked = True

    def take(self) -> bool:
        """Whether it was; several that came since count once."""
        if not self._is_asked:
            return False
        self._is_asked = False  # before anything is read: one that comes meanwhile counts again
        return True


@contextlib.contextmanager
def hearing_hangups(*, has_manager: bool) -> Iterator[Hangup]:
    """Hear SIGHUP in the main thread.

    Args:
        has_manager: without one it says that the terminal is gone, and does what it always does.
    """
    hangup = Hangup()
    if not has_manager:
        yield hangup
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        hangup.ask()

    before = signal.signal(signal.SIGHUP, on_signal)
    try:
        yield hangup
    finally:
        signal.signal(signal.SIGHUP, before)
