"""Left behind: threads that a library still holds when a run ends, and that nobody can end.

A model that hangs while it loads is one. Libraries crash when they are taken down below such a thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from threading import Lock, Thread
from typing import TextIO

_threads: list[Thread] = []
_lock = Lock()


def join_or_leave(thread: Thread, timeout_s: float) -> None:
    """Wait for its end, at most so long; one that goes on is remembered for as long as it does."""
    thread.join(timeout_s)
    if thread.is_alive():
        with _lock:
            _threads[:] = [*filter(Thread.is_alive, _threads), thread]


def is_any_left() -> bool:
    """Whether one of them still goes on."""
    with _lock:
        return any(thread.is_alive() for thread in _threads)


def leave(exit_code: int) -> None:
    """End the process; at once, without any clean-up, if a thread was left behind that still goes on."""
    if not _empty(sys.stdout):
        exit_code = exit_code or 1
    _empty(sys.stderr)
    ignore_signals()
    if is_any_left():
        os._exit(exit_code)
    sys.exit(exit_code)


def ignore_signals() -> None:
    """Ignore SIGTERM and SIGINT from here on, where the program has handled SIGTERM until now: it ends anyway.

    While Python ends, it puts the default actions back in place of handlers, so that a second SIGTERM would change the
    exit code. Signals that are ignored stay so.
    """
    if callable(signal.getsignal(signal.SIGTERM)):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


def _empty(stream: TextIO) -> bool:
    """Write what waits in it, or lose it: Python would try once more at the end, and make its own exit code of that."""
    try:
        stream.flush()
    except (AttributeError, ValueError):  # closed, or never there
        pass
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
