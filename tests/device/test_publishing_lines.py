"""Results as lines: whole, in order, and never at the cost of the loop."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from edge_sdk.errors import OutputError
from edge_sdk.publishing import JsonLinesSink, LinesStats, MemoryOutbox
from tests.device.results import make_classification, make_detections, make_encoder, make_frame

WAIT_S = 30.0


class Pipe:
    """A pipe whose reader reads when it is told to."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.reader: BinaryIO = os.fdopen(reader, "rb")
        self.writer = os.fdopen(writer, "wb", buffering=0)

    def numbers(self) -> list[int]:
        """Everything until the writer closes, as sequence numbers; each line is whole."""
        return [msgspec.json.decode(line)["seq"] for line in self.reader if line != b"\n"]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    # The reader first: that ends a write that hangs.
    made.reader.close()
    _until(lambda: not any(t.name == "edge-lines" for t in threading.enumerate()))
    made.writer.close()


def _put(sink: JsonLinesSink, *numbers: int) -> None:
    for number in numbers:
        sink.put(make_detections(20, make_frame(number)))


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


_WRITTEN = 3


def _fill(pipe: Pipe, sink: JsonLinesSink, outbox: MemoryOutbox, count: int) -> None:
    """Put so many, of which the first three are written; then the pipe is full, and the writer hangs in it."""
    _put(sink, *range(_WRITTEN))
    _until(lambda: sink.stats().written == _WRITTEN)
    blocks = os.get_blocking(pipe.writer.fileno())
    os.set_blocking(pipe.writer.fileno(), False)
    for size in (4096, 1):  # by single bytes at the end: no line finds room in the last page
        with contextlib.suppress(BlockingIOError):
            while os.write(pipe.writer.fileno(), b"\n" * size):
                pass
    os.set_blocking(pipe.writer.fileno(), blocks)
    _put(sink, _WRITTEN)
    _until(lambda: len(outbox) == 0)
    _put(sink, *range(_WRITTEN + 1, count))


def test_one_line_a_result() -> None:
    file = io.BytesIO()
    sink = JsonLinesSink(file, make_encoder())
    sink.put(make_detections(2))
    sink.put(make_classification([0]))
    sink.close()
    sink.close()
    lines = file.getvalue().splitlines(keepends=True)
    assert [msgspec.json.decode(line)["task"] for line in lines] == ["detection", "classification"]
    assert all(line.endswith(b"\n") for line in lines)


def test_a_buffered_file_is_flushed_when_nothing_follows(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with path.open("wb") as file, contextlib.closing(JsonLinesSink(file, make_encoder())) as sink:
        _put(sink, 1)
        _until(lambda: path.read_bytes().endswith(b"\n"))


def test_put_does_not_wait_for_a_reader_and_keeps_the_newest(pipe: Pipe) -> None:
    outbox = MemoryOutbox(max_messages=10)
    sink = JsonLinesSink(pipe.writer, make_encoder(), outbox=outbox)
    _fill(pipe, sink, outbox, 500)
    # Ten wait, and one is being written.
    assert sink.stats() == LinesStats(put=500, written=_WRITTEN, dropped=500 - _WRITTEN - 10 - 1)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(pipe.numbers()))
    reader.start()
    sink.close(WAIT_S)
    pipe.writer.close()
    reader.join(WAIT_S)
    assert found == [*range(_WRITTEN + 1), *range(490, 500)]
    assert len(found) == sink.stats().written == 500 - sink.stats().dropped


@pytest.mark.parametrize("room", [3, 1000], ids=["put waits", "close waits"])
def test_nothing_is_lost_where_all_is_wanted_and_the_reader_is_slow(pipe: Pipe, room: int) -> None:
    outbox = MemoryOutbox(max_messages=room)
    sink = JsonLinesSink(pipe.writer, make_encoder(), outbox=outbox, keeps_all=True)

    def produce() -> None:
        _put(sink, *range(200))
        sink.close(0.01)  # reading pauses for longer than that
        pipe.writer.close()

    producer = threading.Thread(target=produce)
    producer.start()
    _until(lambda: len(outbox) == 3 or (room > 3 and outbox.put_count == 200))
    time.sleep(0.3)
    assert pipe.numbers() == list(range(200))
    producer.join(WAIT_S)
    assert (sink.stats().written, sink.stats().dropped) == (200, 0)


def test_being_stopped_ends_the_wait_for_room(pipe: Pipe) -> None:
    stopped = threading.Event()
    outbox = MemoryOutbox(max_messages=3)
    sink = JsonLinesSink(pipe.writer, make_encoder(), outbox=outbox, keeps_all=True, is_stopped=stopped.is_set)

    def produce() -> None:
        while not stopped.is_set():
            _put(sink, 1)
        sink.close(0.01)

    producer = threading.Thread(target=produce)
    producer.start()

    def is_stuck() -> bool:  # the outbox is full for a moment now and then while the pipe still takes lines
        before = sink.stats()
        time.sleep(0.2)
        return len(outbox) == 3 and sink.stats() == before

    _until(is_stuck)
    stopped.set()
    producer.join(WAIT_S)
    assert not producer.is_alive()
    assert sink.stats().written < sink.stats().put


@pytest.mark.parametrize("is_stopped", [False, True])
def test_close_gives_up_when_nobody_reads(pipe: Pipe, is_stopped: bool) -> None:
    outbox = MemoryOutbox()
    sink = JsonLinesSink(pipe.writer, make_encoder(), outbox=outbox, is_stopped=lambda: is_stopped)
    _fill(pipe, sink, outbox, 500)
    sink.close(0.05)
    assert sink.stats().written == _WRITTEN
    sink.close(1000.0)  # does not begin to wait again


def test_close_waits_as_long_as_somebody_reads(pipe: Pipe) -> None:
    outbox = MemoryOutbox()
    sink = JsonLinesSink(pipe.writer, make_encoder(), outbox=outbox)
    _fill(pipe, sink, outbox, 900)

    def read_slowly() -> None:
        while pipe.reader.read(20_000):
            time.sleep(0.03)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    sink.close(1.0)  # less than reading takes in all; each pause is far shorter
    assert sink.stats().written == 900
    pipe.writer.close()
    reader.join(WAIT_S)


def test_a_reader_that_goes_away(pipe: Pipe) -> None:
    sink = JsonLinesSink(pipe.writer, make_encoder())
    pipe.reader.close()
    _put(sink, 1)
    _until(lambda: not sink._thread.is_alive())
    with pytest.raises(BrokenPipeError):
        _put(sink, 2)
    sink.close()  # it was said


@pytest.mark.parametrize("ask", [lambda sink: _put(sink, 2), JsonLinesSink.close])
def test_a_full_disk(ask: Callable[[JsonLinesSink], None]) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        sink = JsonLinesSink(full, make_encoder())
        _put(sink, 1)
        _until(lambda: not sink._thread.is_alive())
        with pytest.raises(OutputError, match="results cannot be written: No space left on device"):
            ask(sink)


def test_a_pipe_that_does_not_block(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer.fileno(), False)
    outbox = MemoryOutbox()
    sink = JsonLinesSink(pipe.writer, make_encoder(), outbox=outbox)
    _fill(pipe, sink, outbox, 500)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(pipe.numbers()))
    reader.start()
    sink.close(WAIT_S)
    pipe.writer.close()
    reader.join(WAIT_S)
    assert found == list(range(500))
