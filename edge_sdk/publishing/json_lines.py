"""JsonLinesSink: results as lines of JSON, the same bytes that MQTT would carry.

For a terminal, a pipe or a file. Owns the thread that writes: a reader that stops reading would hold up the loop, and
no signal ends a write that waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from io import RawIOBase
from typing import BinaryIO

import msgspec

from edge_sdk.errors import OutputError
from edge_sdk.frame import Result
from edge_sdk.publishing.encoder import ResultEncoder
from edge_sdk.publishing.outbox import MemoryOutbox, Message

_LOOK_S = 0.05  # how often who waits looks whether it still should
_RETRY_S = 0.01  # until a file that does not block is tried again


class LinesStats(msgspec.Struct, frozen=True):
    """What happened to results so far.

    Attributes:
        put: given to `put`.
        written: written as a whole.
        dropped: the oldest, when more were waiting than the outbox holds.
    """

    put: int
    written: int
    dropped: int


class JsonLinesSink:
    """Writes one line a result, from a thread of its own, which starts at once.

    Args:
        file: open for writing bytes and best without a buffer, whose lock a write that hangs would keep for ever; stays
            its owner's.
        encoder: makes the lines.
        outbox: where lines wait for a slow reader; the newest are kept.
        keeps_all: no line is dropped: `put` waits for room, and `close` for the reader, for as long as it takes.
        is_stopped: asked while waiting; once True, nothing waits for the reader any more.
    """

    def __init__(
        self,
        file: BinaryIO | RawIOBase,
        encoder: ResultEncoder,
        *,
        outbox: MemoryOutbox | None = None,
        keeps_all: bool = False,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._file, self._encoder = file, encoder
        self._outbox = MemoryOutbox() if outbox is None else outbox
        self._keeps_all, self._is_stopped = keeps_all, is_stopped
        self._news, self._closing = threading.Event(), False
        self._written = 0
        self._failure: OSError | None = None
        self._is_told = False
        # A daemon thread: one that hangs in a write must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="edge-lines", daemon=True)
        self._thread.start()

    def put(self, result: Result) -> None:
        """Encode one result and leave it to the thread.

        Raises:
            BrokenPipeError: nobody reads any more.
            OutputError: an earlier line could not be written, for instance because the disk is full.
        """
        message = Message("", self._encoder.encode(result) + b"\n")
        while self._keeps_all and not self._outbox.has_room(message) and self._thread.is_alive():
            if self._is_stopped():
                break
            self._thread.join(_LOOK_S)
        self._complain()
        self._outbox.put(message)
        self._news.set()

    def stats(self) -> LinesStats:
        """What happened so far."""
        return LinesStats(self._outbox.put_count, self._written, self._outbox.dropped_count)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits; may be called twice, and only the first call waits.

        Args:
            timeout_s: seconds without a line being taken, or in all once stopped, after which the rest is given up.

        Raises:
            BrokenPipeError: nobody reads any more; both only where `put` has not said so.
            OutputError: a line could not be written.
        """
        written, deadline = self._written, time.monotonic() + (0.0 if self._closing else timeout_s)
        self._closing = True
        self._news.set()
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(_LOOK_S)
            if not self._is_stopped() and (self._keeps_all or self._written != written):
                written, deadline = self._written, time.monotonic() + timeout_s
        if not self._is_told:
            self._complain()

    def _complain(self) -> None:
        if self._failure is None:
            return
        self._is_told = True
        if isinstance(self._failure, BrokenPipeError):
            raise self._failure
        reason = self._failure.strerror or self._failure
        raise OutputError(f"results cannot be written: {reason}") from self._failure

    def _run(self) -> None:
        try:
            while (message := self._next()) is not None:
                self._write(message.payload)
                self._written += 1
        except OSError as cause:
            self._failure = cause

    def _next(self) -> Message | None:
        """The next line, once there is one; None when there will be none."""
        while (message := self._outbox.take()) is None:
            self._file.flush()  # nothing follows at once: a reader must see what there is
            if self._closing:
                break
            self._news.wait()
            self._news.clear()
        return message

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            count = self._file.write(rest)
            if not count:
                time.sleep(_RETRY_S)
            rest = rest[count or 0 :]
