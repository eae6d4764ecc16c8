"""Stop: what ends a run from outside, from its first moment on."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Stop:
    """Whether a run shall end.

    Attributes:
        reason: why; None as long as it shall go on.
    """

    def __init__(self) -> None:
        self.reason: str | None = None

    def ask(self, reason: str = "signal") -> None:
        """Finish what is at hand and leave; safe in a signal handler. The first reason counts."""
        self.reason = self.reason or reason

    def is_asked(self) -> bool:
        """Whether it shall end."""
        return self.reason is not None


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[Stop]:
    """SIGTERM and SIGINT ask for the end; a second SIGINT interrupts at once."""
    stop = Stop()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stop.ask()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
