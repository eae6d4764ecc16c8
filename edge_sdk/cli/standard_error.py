"""Standard error of a program that runs for months: writing to it never waits, and libraries' noise stays out of it.

Owns descriptor 2 while it lasts. A pipe takes its place, which a thread empties: what nobody reads fills the pipe, and
is lost then, while cameras, the broker and a signal's request to stop go on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
from collections.abc import Iterator

_NUMBER = 2
_MOST_BYTES = 1 << 16  # of a line; who writes more than that without an end gets it in parts
_PATIENCE_S = 0.3  # a reader that works has taken everything by then
# libjpeg writes a line for each damaged picture, past OpenCV and its log levels; some cameras damage every one.
_NOISE = (b"Corrupt JPEG data", b"Premature end of JPEG", b"Invalid SOS parameters", b"Warning: unknown JFIF revision")


@contextlib.contextmanager
def unhurried() -> Iterator[None]:
    """Within, whoever writes to standard error waits for nobody; afterwards it is as it was."""
    try:
        real = os.dup(_NUMBER)
    except OSError:  # it is closed, or there are no descriptors
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.dup2(writing, _NUMBER)
    os.close(writing)
    if faulthandler.is_enabled():
        faulthandler.enable(real)  # who crashes does not empty a pipe any more
    # A daemon thread: where nobody reads, it waits for ever.
    carrier = threading.Thread(target=_carry, args=(reading, real), name="edge-stderr", daemon=True)
    carrier.start()
    try:
        yield
    finally:
        os.dup2(real, _NUMBER)  # the pipe's last end for writing goes, but for those of children
        if faulthandler.is_enabled():
            faulthandler.enable(_NUMBER)
        carrier.join(_PATIENCE_S)


def _carry(reading: int, real: int) -> None:
    """Bring whole lines from one to the other, until there are no more."""
    rest = b""
    with contextlib.suppress(OSError):
        while taken := os.read(reading, _MOST_BYTES):
            *lines, rest = (rest + taken).split(b"\n")
            if len(rest) >= _MOST_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                if not line.startswith(_NOISE):
                    _write(real, line + b"\n")
        _write(real, rest)
    os.close(reading)
    os.close(real)


def _write(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk, or a reader that went: lost, as nobody could be told
        while data:
            data = data[os.write(descriptor, data) :]
