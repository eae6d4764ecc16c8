"""JsonLinesPublisher: write results and events as lines of JSON to a terminal, a pipe or a file.

The lines are the same messages as over MQTT. A thread of its own writes them, because a reader that stops reading would
block a camera's loop, and no signal ends a blocked write. State, telemetry and pictures are not written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from io import RawIOBase
from typing import BinaryIO

from edge_sdk.core.errors import LinesError
from edge_sdk.core.frame import Result
from edge_sdk.core.protocols import Event
from edge_sdk.messages.encoder import EventEncoder, ResultEncoder
from edge_sdk.messages.schema import Message, check_name
from edge_sdk.publishing.publisher import CameraSequence, LinesStats, Stream, StreamStats
from edge_sdk.publishing.queues import MemoryOutbox

_LOOK_S = 0.05  # time between two checks whether to go on waiting
_RETRY_S = 0.01  # wait before a non-blocking file is tried again


class JsonLinesPublisher:
    """Writes one line for each result or event, in a thread of its own, which starts at once.

    Args:
        file: open for writing bytes, best unbuffered, because a blocked write would hold the buffer's lock for ever.
        keeps_all: whether no line may be dropped; `put` then waits for room and `close` for the reader, without limit.
        is_stopped: called while waiting; once it returns True, nothing waits for the reader any more.
        in_words: turns a line of JSON into text for people; None: the JSON is written.
    """

    def __init__(
        self,
        file: BinaryIO | RawIOBase,
        *,
        keeps_all: bool = False,
        is_stopped: Callable[[], bool] = lambda: False,
        in_words: Callable[[bytes], str] | None = None,
    ) -> None:
        self._file, self._in_words = file, in_words
        self._outbox = MemoryOutbox()  # lines that wait for a slow reader; it keeps the newest
        self._keeps_all, self._is_stopped = keeps_all, is_stopped
        self._sequences: dict[str, CameraSequence] = {}  # kept, so that a camera that comes back continues its own
        self._news, self._closing = threading.Event(), False
        self._count = 0  # lines that were written
        self._written: dict[str, int] = {}  # lines that were written, by camera
        self._failure: OSError | None = None
        self._has_raised = False
        # A daemon thread, because a blocked write must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="edge-lines", daemon=True)
        self._thread.start()

    def stream(self, camera: str, encoder: ResultEncoder) -> JsonLinesStream:
        """Return the stream of a camera, which replaces an earlier one; see `MqttPublisher.stream`."""
        check_name("camera", camera)
        return JsonLinesStream(self, camera, encoder, self._sequences.setdefault(camera, CameraSequence()))

    def put_line(self, message: Message) -> None:
        """Queue one line of a stream for the thread; see `Stream.put`."""
        is_taken = False
        while self._keeps_all and self._thread.is_alive() and not self._is_stopped():
            is_taken = self._outbox.offer(message)
            if is_taken:
                break
            self._thread.join(_LOOK_S)
        self._raise_failure()
        if not is_taken:
            self._outbox.put(message)
        self._news.set()

    def of_camera(self, camera: str) -> StreamStats:
        """Return the counts of one camera's lines so far."""
        put, queued, dropped = self._outbox.counts(camera)
        written = self._written.get(camera, 0)
        return StreamStats(
            put=put, queued=queued, sent=written, acknowledged=0, rejected=0, dropped=dropped, too_large=0
        )

    def stats(self) -> LinesStats:
        """Return the counts of all lines so far."""
        put, _, dropped = self._outbox.counts()
        return LinesStats(put, self._count, dropped)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write the lines that wait; may be called twice, and only the first call waits.

        The rest is dropped when the reader takes no line for `timeout_s` seconds; once stopped, when that time is over.
        The errors of `put` are raised only if it has not raised them.
        """
        written, deadline = self._count, time.monotonic() + (0.0 if self._closing else timeout_s)
        self._closing = True
        self._news.set()
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(_LOOK_S)
            if not self._is_stopped() and (self._keeps_all or self._count != written):
                written, deadline = self._count, time.monotonic() + timeout_s
        if not self._has_raised:
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is None:
            return
        self._has_raised = True
        if isinstance(self._failure, BrokenPipeError):
            raise self._failure
        reason = self._failure.strerror or self._failure
        raise LinesError(f"results cannot be written: {reason}") from self._failure

    def _run(self) -> None:
        try:
            while (message := self._next()) is not None:
                line = message.payload
                self._write(line if self._in_words is None else f"{self._in_words(line)}\n".encode())
                self._count += 1
                self._written[message.camera] = self._written.get(message.camera, 0) + 1
        except OSError as cause:
            self._failure = cause
        except ValueError:  # the owner closed the file
            self._failure = OSError(errno.EBADF, os.strerror(errno.EBADF))

    def _next(self) -> Message | None:
        """Wait for the next line and return it; None when there will be none."""
        while (message := self._outbox.take()) is None:
            self._file.flush()  # no line waits, so the reader gets all lines written so far
            if self._closing:
                break
            self._news.wait()
            self._news.clear()
        return message

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                count = self._file.write(rest)
                if not count:
                    time.sleep(_RETRY_S)
                rest = rest[count or 0 :]
        except OSError:
            with contextlib.suppress(OSError, ValueError):  # a pipe cannot take an unfinished line back
                end = self._file.tell()
                if end == os.fstat(self._file.fileno()).st_size:
                    self._file.truncate(end - (len(line) - len(rest)))
            raise


class JsonLinesStream(Stream):
    """The lines of one camera; see `Stream`."""

    def __init__(
        self, publisher: JsonLinesPublisher, camera: str, encoder: ResultEncoder, sequence: CameraSequence
    ) -> None:
        self.camera = camera
        self._publisher, self._encoder, self._sequence = publisher, encoder, sequence
        self._events = EventEncoder.beside(encoder, camera)
        sequence.take(self)

    def put(self, value: Result | Event) -> None:
        """Encode one result or event and queue it for the thread; see `Stream.put`."""
        if isinstance(value, Event):
            line = self._events.encode(value, next(self._sequence.events)) if self._sequence.is_of(self) else None
        else:
            seq = self._sequence.number(self, value.frame.seq)
            line = None if seq is None else self._encoder.encode(value, seq)
        if line is not None:
            self._publisher.put_line(Message("", line + b"\n", self.camera))

    def stats(self) -> StreamStats:
        """Return the counts so far; see `Stream.stats`."""
        return self._publisher.of_camera(self.camera)

    def close(self) -> None:
        """Accept nothing more; see `Stream.close`."""
        self._sequence.leave(self)
