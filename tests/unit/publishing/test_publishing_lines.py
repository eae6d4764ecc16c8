"""Results as lines, whole and in order, and a publisher with no broker anywhere."""

import contextlib
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, BinaryIO, NamedTuple

import msgspec
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import ConfigError, EdgeError, OutputError, PublishError, UsageError
from edge_sdk.core.protocols import Event, Sink
from edge_sdk.publisher import Publisher
from edge_sdk.publishing.json_lines import JsonLinesPublisher, JsonLinesStream
from edge_sdk.publishing.publisher import LinesStats, NameLock
from edge_sdk.publishing.queues import MemoryOutbox
from edge_sdk.publishing.settings import MqttSettings
from tests.support.bundles import write_graded
from tests.support.connections import WAIT_S, until
from tests.support.logs import refusal
from tests.support.results import make_classification, make_detections, make_encoder, make_frame


class Pipe:
    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.reader: BinaryIO = os.fdopen(reader, "rb")
        self.writer = os.fdopen(writer, "wb", buffering=0)

    def numbers(self) -> list[int]:
        """Everything until the writer closes, as sequence numbers; each line is whole."""
        return [msgspec.json.decode(line)["seq"] for line in self.reader if line != b"\n"]

    def read_until_closed(self, publisher: JsonLinesPublisher) -> list[int]:
        """The numbers of what comes while a publisher is closed, which waits for its reader."""
        with ThreadPoolExecutor(1) as reader:
            found = reader.submit(self.numbers)
            publisher.close(WAIT_S)
            self.writer.close()
            return found.result(WAIT_S)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    # The reader first: that ends a write that hangs.
    made.reader.close()
    until(lambda: not any(t.name == "edge-lines" for t in threading.enumerate()))
    made.writer.close()


class Lines(NamedTuple):
    publisher: JsonLinesPublisher
    stream: JsonLinesStream


def _door(file: BinaryIO, outbox: MemoryOutbox | None = None, **options: Any) -> Lines:
    publisher = JsonLinesPublisher(file, **options)
    publisher._outbox = publisher._outbox if outbox is None else outbox
    return Lines(publisher, publisher.stream("door", make_encoder()))


def _put(door: Lines, *numbers: int) -> None:
    for number in numbers:
        door.stream.put(make_detections(20, make_frame(number)))


_WRITTEN = 3


def _fill(pipe: Pipe, door: Lines, outbox: MemoryOutbox, count: int) -> None:
    """Put so many, of which the first three are written; then the pipe is full, and the writer hangs in it."""
    _put(door, *range(_WRITTEN))
    until(lambda: door.publisher.stats().written == _WRITTEN)
    blocks = os.get_blocking(pipe.writer.fileno())
    os.set_blocking(pipe.writer.fileno(), False)
    for size in (4096, 1):  # by single bytes at the end: no line finds room in the last page
        with contextlib.suppress(BlockingIOError):
            while os.write(pipe.writer.fileno(), b"\n" * size):
                pass
    os.set_blocking(pipe.writer.fileno(), blocks)
    _put(door, _WRITTEN)
    until(lambda: len(outbox) == 0)
    _put(door, *range(_WRITTEN + 1, count))


def test_a_buffered_file_is_flushed_when_nothing_follows(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with path.open("wb") as file:
        _put(door := _door(file), 1)
        until(lambda: path.read_bytes().endswith(b"\n"))
        door.publisher.close()


def test_put_does_not_wait_for_a_reader_and_keeps_the_newest(pipe: Pipe) -> None:
    outbox = MemoryOutbox(max_messages=10)
    door = _door(pipe.writer, outbox=outbox)
    _fill(pipe, door, outbox, 500)
    # Ten wait, and one is being written.
    assert door.publisher.stats() == LinesStats(put=500, written=_WRITTEN, dropped=500 - _WRITTEN - 10 - 1)
    found = pipe.read_until_closed(door.publisher)
    assert found == [*range(_WRITTEN + 1), *range(490, 500)]
    assert len(found) == door.publisher.stats().written == 500 - door.publisher.stats().dropped


@pytest.mark.parametrize("room", [3, 1000], ids=["put waits", "close waits"])
def test_nothing_is_lost_where_all_is_wanted_and_the_reader_is_slow(pipe: Pipe, room: int) -> None:
    outbox = MemoryOutbox(max_messages=room)
    door = _door(pipe.writer, outbox=outbox, keeps_all=True)

    def produce() -> None:
        _put(door, *range(200))
        door.publisher.close(0.01)  # reading pauses for longer than that
        pipe.writer.close()

    with ThreadPoolExecutor(1) as producer:
        producer.submit(produce)
        until(lambda: len(outbox) == 3 or (room > 3 and outbox.counts().put == 200))
        time.sleep(0.1)  # ten times as long as the closing waits
        assert pipe.numbers() == list(range(200))
    assert (door.publisher.stats().written, door.publisher.stats().dropped) == (200, 0)


def test_being_stopped_ends_the_wait_for_room(pipe: Pipe) -> None:
    stopped = threading.Event()
    outbox = MemoryOutbox(max_messages=3)
    door = _door(pipe.writer, outbox=outbox, keeps_all=True, is_stopped=stopped.is_set)

    def produce() -> None:
        while not stopped.is_set():
            _put(door, 1)
        door.publisher.close(0.01)

    def is_stuck() -> bool:  # the outbox is full for a moment now and then while the pipe still takes lines
        before = door.publisher.stats()
        time.sleep(0.02)
        return len(outbox) == 3 and door.publisher.stats() == before

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    until(is_stuck)
    stopped.set()
    producer.join(WAIT_S)
    assert not producer.is_alive()
    assert door.publisher.stats().written < door.publisher.stats().put


@pytest.mark.parametrize("is_stopped", [False, True])
def test_close_gives_up_when_nobody_reads(pipe: Pipe, is_stopped: bool) -> None:
    outbox = MemoryOutbox()
    door = _door(pipe.writer, outbox=outbox, is_stopped=lambda: is_stopped)
    _fill(pipe, door, outbox, 500)
    door.publisher.close(0.05)
    assert door.publisher.stats().written == _WRITTEN
    door.publisher.close(1000.0)  # does not begin to wait again


def test_close_waits_as_long_as_somebody_reads(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, outbox = 0.0, MemoryOutbox()
    monkeypatch.setattr("edge_sdk.publishing.json_lines.time", SimpleNamespace(monotonic=lambda: now_s))
    door = _door(pipe.writer, outbox=outbox)
    _fill(pipe, door, outbox, 900)

    def read_slowly() -> None:
        nonlocal now_s
        while pipe.reader.read(20_000):
            now_s += 0.015  # by the publisher's clock: a busy machine is no slow reader

    with ThreadPoolExecutor(1) as reader:
        reader.submit(read_slowly)
        door.publisher.close(0.6)  # less than reading takes in all; each pause is far shorter
        pipe.writer.close()
    assert door.publisher.stats().written == 900


def test_a_reader_that_goes_away(pipe: Pipe) -> None:
    door = _door(pipe.writer)
    pipe.reader.close()
    _put(door, 1)
    until(lambda: not door.publisher._thread.is_alive())
    with pytest.raises(BrokenPipeError):
        _put(door, 2)
    door.publisher.close()  # it was said


@pytest.mark.parametrize("ask", [lambda door: _put(door, 2), lambda door: door.publisher.close()])
def test_a_full_disk(ask: Callable[[Lines], None]) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        door = _door(full)
        _put(door, 1)
        until(lambda: not door.publisher._thread.is_alive())
        with pytest.raises(OutputError, match="results cannot be written: No space left on device"):
            ask(door)


def test_a_pipe_that_does_not_block(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer.fileno(), False)
    outbox = MemoryOutbox()
    door = _door(pipe.writer, outbox=outbox)
    _fill(pipe, door, outbox, 500)
    assert pipe.read_until_closed(door.publisher) == list(range(500))


def test_as_lines_events_stand_between_results() -> None:
    file = io.BytesIO()
    publisher, stream = _door(file)
    stream.put(make_detections(1, make_frame(0)))
    stream.put(Event(kind="a"))
    stream.put_snapshot(b"x", 0)
    stream.put(Event(kind="b"))
    publisher.stream("door", make_encoder()).put(Event(kind="c"))
    stream.put(Event(kind="lost"))
    publisher.close()
    lines = [msgspec.json.decode(line) for line in file.getvalue().splitlines()]
    expected = [("result", None, 0), ("event", "a", 0), ("event", "b", 1), ("event", "c", 2)]
    assert [(d["stream"], d.get("kind"), d["seq"]) for d in lines] == expected


# Publisher: what it refuses, what it numbers and what it keeps, with no broker anywhere.

_NOBODY, _SECRET = "mqtt://127.0.0.1:9", "hunter2"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle.open(write_graded(tmp_path / "graded.edge", latency_ms=50.0))


def _open(folder: Path, **arguments: Any) -> Publisher:
    return Publisher.open(_NOBODY, **{"device": "gate-1", "outbox": folder, **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "line"),
    [
        ({"url": None}, ConfigError, "mqtt.url is missing"),
        ({"url": f"mqtt://me:{_SECRET}@broker.local"}, ConfigError, "there is a password in the URL"),
        ({"device": "a/b"}, UsageError, "device name 'a/b' cannot be part of a topic"),
        ({"qos": 2}, ConfigError, "mqtt.qos: 2, expected 0 or 1"),
        ({"outbox": "nowhere"}, UsageError, "outbox: nowhere: no such folder"),
        ({"outbox": __file__}, UsageError, "test_publishing_lines.py is a file, name a folder"),
        ({"outbox": {"max_mb": 0}}, ConfigError, "outbox.max_mb is 0"),
        ({"outbox": MappingProxyType({"password": _SECRET})}, ConfigError, "outbox.password: a password does not"),
        ({"publish": MappingProxyType({"event": {}})}, ConfigError, "publish: unknown key event; did you mean events?"),
        ({"url": "mqtt://me@h", "password_file": "nowhere"}, ConfigError, "nowhere: the MQTT password cannot be read"),
        ({"url": "mqtts://h", "cert_file": "nowhere"}, UsageError, "nowhere: this device's certificate cannot be read"),
        ({"cameras": {"a/b": None}}, UsageError, "camera name 'a/b' cannot be part of a topic"),
        ({"cameras": {"gate": "person.edge"}}, UsageError, "camera 'gate': expected a Bundle, got 'person.edge'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], error: type[EdgeError], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(error, Publisher.open, **{"url": _NOBODY, "device": "gate-1", "outbox": tmp_path, **arguments})
    assert (line in said, _SECRET in said, list(tmp_path.iterdir())) == (True, False, []), said


def test_events_are_on_disk_before_they_count_as_acknowledged_and_their_numbers_go_on(tmp_path: Path) -> None:
    with _open(tmp_path) as publisher:
        numbers = [publisher.put_event(Event(kind="opened", camera="door")) for _ in range(3)]
        assert publisher.wait_committed(60.0)
        stats = publisher.stats()
        assert (stats.events.waiting, stats.events.is_durable, stats.events.lost.total) == (3, True, 0)
    with _open(tmp_path) as publisher:
        assert publisher.stats().events.waiting == 3
        numbers.append(publisher.put_event(Event(kind="opened", camera="door")))
    assert numbers[0] is not None
    assert numbers == [numbers[0] + index for index in range(4)]


def test_a_name_or_a_file_that_is_used_already_is_refused_until_it_is_free(tmp_path: Path) -> None:
    with _open(tmp_path):
        with pytest.raises(PublishError, match=rf"\(process {os.getpid()}\) publishes as device 'gate-1'"):
            _open(tmp_path)
        with pytest.raises(OutputError, match=r"events-default-gate-1\.sqlite: another program uses this file"):
            Publisher.open("mqtt://127.0.0.1:10", device="gate-1", outbox=tmp_path)
        _open(tmp_path, device="gate-2").close()
    _open(tmp_path).close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_takes_nothing_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="events cannot wait there: Permission denied"):
        _open(tmp_path)


def test_without_a_folder_events_wait_where_the_daemon_s_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Publisher.open(_NOBODY, device="gate-1", site="north") as publisher:
        publisher.put(Event(kind="opened"))
    assert (tmp_path / "edge-sdk/outbox/events-north-gate-1.sqlite").stat().st_mode & 0o777 == 0o600


def test_it_takes_results_of_the_cameras_it_knows(tmp_path: Path, bundle: Bundle) -> None:
    with _open(tmp_path, cameras={"gate": bundle}) as publisher:
        sink: Sink = publisher
        sink.put(make_classification([1], make_frame(0, "gate")))
        assert publisher.stats().put == 1
        with pytest.raises(UsageError, match=r"camera 'door', expected one of .* \('gate'\); cameras=\{'door'"):
            sink.put(make_classification([1], make_frame(0, "door")))


def test_what_is_neither_a_result_nor_an_event_is_refused_and_anything_once_it_is_closed(
    tmp_path: Path, bundle: Bundle
) -> None:
    publisher, value = _open(tmp_path, cameras={"gate": bundle}), "x"
    with pytest.raises(UsageError, match=r"got a value of type str, expected a result .* or an Event$"):
        publisher.put(value)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"got a value of type str, expected an Event$"):
        publisher.put_event(value)  # type: ignore[arg-type]
    publisher.close()
    publisher.close()
    for late in (Event(kind="opened"), make_classification([1], make_frame(0, "gate"))):
        with pytest.raises(UsageError, match="this publisher is closed"):
            publisher.put(late)


# The lock of a device's name, which the daemon holds too.

_HOLDS_IT = """
import sys
from edge_sdk.publishing.publisher import NameLock
from edge_sdk.publishing.settings import MqttSettings
lock = NameLock(MqttSettings(host="broker", port=1883, device="gate"))
print("held", flush=True)
sys.stdin.read()
"""


def _lock() -> NameLock:
    return NameLock(MqttSettings(host="broker", port=1883, device="gate"))


def test_a_program_that_is_killed_lets_go_of_it() -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDS_IT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(PublishError, match=rf"\(process {other.pid}\)"):
            _lock()
        other.kill()
    _lock().close()


def test_without_a_folder_no_name_is_locked_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("a file")
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    for lock in [_lock() for _ in range(2)]:
        lock.close()
