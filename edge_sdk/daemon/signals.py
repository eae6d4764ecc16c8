"""Signals: what ends a daemon from outside."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from edge_sdk.daemon.daemon import Daemon


@contextlib.contextmanager
def stopping_on_signals(daemon: Daemon) -> Iterator[None]:
    """SIGTERM and SIGINT finish the frame and stop the daemon; a second SIGINT interrupts at once."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        daemon.stop()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
