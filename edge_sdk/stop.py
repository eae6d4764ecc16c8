"""Stop: what ends a run from outside, from its first moment on, and what has it read its configuration again."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType


class Stop:
    """Whether a run, or a part of it, shall end.

    Args:
        whole: of what this is a part: where that shall end, this shall, too.

    Attributes:
        reload: whether the configuration is to be read again; whoever does it sets it back.
    """

    def __init__(self, whole: Stop | None = None) -> None:
        self._whole = whole
        self._reason: str | None = None
        self._asked_s = math.inf  # monotonic seconds
        self.reload = False

    @property
    def reason(self) -> str | None:
        """Why; None as long as it shall go on."""
        return self._reason or (self._whole.reason if self._whole else None)

    def ask(self, reason: str = "signal") -> None:
        """Finish what is at hand and leave; safe in a signal handler. The first reason counts."""
        self._asked_s = min(self._asked_s, time.monotonic())
        self._reason = self._reason or reason

    def is_asked(self) -> bool:
        """Whether it shall end."""
        return self.reason is not None

    def left_s(self, total_s: float) -> float:
        """What is left of so many seconds since somebody asked for the end: less than 0 after them, all before."""
        return min(total_s, self._asked_s + total_s - time.monotonic())


@contextlib.contextmanager
def stopping_on_signals(*, reloads: bool = False) -> Iterator[Stop]:
    """SIGTERM and SIGINT ask for the end, and SIGHUP does; a second SIGINT interrupts at once.

    SIGHUP stays ignored where it was, as under nohup: then it neither ends a run nor has it read anything again.

    Args:
        reloads: SIGHUP asks for a reload, as of a service; but where there is a terminal and it is gone with that
            signal, it asks for the end as it does otherwise.
    """
    stop = Stop()
    had_terminal = _has_terminal()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and reloads and not (had_terminal and not _has_terminal()):
            stop.reload = True
            return
        stop.ask()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    # Whoever was started with nohup asked not to hear of a terminal that is closed.
    heard = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heard.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_terminal() -> bool:
    """Whether there is a controlling terminal; the kernel takes it away before it signals that it was closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError as cause:
        return cause.errno not in (errno.ENXIO, errno.EIO, errno.ENODEV, errno.ENOENT)  # others say nothing of it
    return True
