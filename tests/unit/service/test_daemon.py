"""The service: the pipelines of one process end together, and a reload changes what it must and nothing else."""

import io
import math
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import msgspec
import pytest

from edge_sdk.bundle import bundle
from edge_sdk.core.errors import ConfigError, PublishError
from edge_sdk.core.protocols import Event
from edge_sdk.core.threads import Stop, is_any_left
from edge_sdk.outbox.event import OutboxSettings
from edge_sdk.publishing.publisher import NameLock
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.service.output import Output
from edge_sdk.service.process import Notifier, Shared, Start
from edge_sdk.service.runner import Progress
from edge_sdk.service.service import Service
from edge_sdk.service.settings import PipelineSettings, RunSettings
from tests.support.connections import WAIT_S, until
from tests.support.logs import SAID
from tests.support.outboxes import SlowDisk
from tests.support.service import Manager, Site, open_cameras


class Process:
    """A daemon in a thread, whose configuration is what a test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site, self._monkeypatch = Site(folder), monkeypatch
        self.manager = Manager(folder / "notify")
        self.said, self.stop, self.shared = SAID, Stop(), Shared(Progress(math.inf))
        self.config: RunSettings | Exception
        self.may_read = threading.Event()
        self.may_read.set()
        self.reads = self.asks = 0  # how often it was read again; how often that is asked for while it is read
        self.told = list[str]()
        self._threads, self.ran = ThreadPoolExecutor(1), Future[None]()

    def settings(self, *streams: PipelineSettings, **changes: Any) -> RunSettings:
        return RunSettings(**{"device": "pi", "pipelines": streams, "waits": True, **changes})

    def start(self, *streams: PipelineSettings, has_config: bool = True, **changes: Any) -> None:
        self._monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=io.BytesIO()))
        self.config = self.settings(*streams, **changes)
        self.daemon = Service(
            self.config, self.shared, self.stop, Notifier(self.manager.address), Start(0.0),
            self._reread if has_config else None,
        )  # fmt: skip
        self.ran = self._threads.submit(self.daemon.run)

    def _reread(self) -> RunSettings:
        self.reads += 1
        if self.asks:
            self.asks -= 1
            self.stop.reload = True
        assert self.may_read.wait(WAIT_S)
        if isinstance(self.config, Exception):
            raise self.config
        return self.config

    def reload(self, *streams: PipelineSettings, **changes: Any) -> None:
        if streams:
            self.config = self.settings(*streams, **changes)
        before = self.reads
        self.stop.reload = True
        until(lambda: self.reads > before and not self.stop.reload and self.daemon._reading is None)

    @property
    def running(self) -> Any:
        return self.daemon._supervisor.running

    def until_said(self, words: str) -> None:
        until(lambda: any(words in line for line in self.said))

    def until_results(self, *cameras: str) -> None:
        until(lambda: all(map(self._has_results, cameras)) or self.ran.done())
        assert not self.ran.done()

    def _has_results(self, camera: str) -> bool:
        running = self.running.get(camera)
        return running is not None and running.first_result_ns > 0 and not running.is_over

    def end(self) -> None:
        self.stop.ask()
        self.ran.result(WAIT_S)

    def close(self) -> None:
        if hasattr(self, "daemon"):
            self.end()
        self.site.close()
        self.manager.close()


@pytest.fixture
def gate(process: Process) -> Any:
    """The pipeline of the only stream, which has results."""
    process.start(process.site.settings())
    process.until_results("gate")
    return process.running["gate"]


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    threads, made = cv2.getNumThreads(), Process(tmp_path, monkeypatch)
    yield made
    made.close()
    cv2.setNumThreads(threads)
    until(lambda: not open_cameras())


def test_a_reload_to_a_name_that_another_program_has_is_refused(process: Process) -> None:
    mine, taken = (MqttSettings(host="127.0.0.1", port=1, device=name) for name in ("pi", "taken"))
    other = NameLock(taken)
    process.start(process.site.settings(), mqtt=mine)
    process.until_results("gate")
    with pytest.raises(PublishError):
        NameLock(mine)
    process.reload(process.site.settings(), device="taken", mqtt=taken)
    process.until_said("what runs goes on: another program")
    other.close()
    process.reload()
    process.until_said("all pipelines begin again")
    until(lambda: list(process.daemon._names) == [NameLock.key_of(taken)])
    NameLock(mine).close()
    process.end()
    NameLock(taken).close()


@pytest.mark.parametrize("reloads", [False, True])
def test_a_disk_that_takes_no_event_holds_up_neither_the_end_nor_a_change_of_names(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reloads: bool
) -> None:
    disk = SlowDisk(monkeypatch)
    monkeypatch.setattr(Output.close, "__defaults__", (10 * WAIT_S,))  # who names no time waits for ever
    broker, outbox = MqttSettings(host="127.0.0.1", port=1, device="pi"), OutboxSettings(folder=tmp_path)
    process.start(process.site.settings(), mqtt=broker, outbox=outbox)
    process.until_results("gate")
    stream = process.running["gate"]._stream
    stream.put(Event(kind="rang"))
    until(lambda: process.daemon._output.stats().events.is_durable)  # type: ignore[union-attr]  # it runs
    disk.may_go.clear()
    stream.put(Event(kind="rang"))
    if reloads:
        other = msgspec.structs.replace(broker, device="other")
        process.reload(process.site.settings(), device="other", mqtt=other, outbox=outbox)
    process.end()
    disk.may_go.set()


def test_a_configuration_that_cannot_be_read_changes_nothing_and_is_read_as_often_as_asked(
    process: Process, gate: Any
) -> None:
    process.config = ConfigError("config.toml: a is wrong", "config.toml: b is wrong")
    process.asks = 1  # who asks while a reading begins has it read once more
    process.reload()
    until(lambda: process.reads == 2 and process.said.count("config.toml: b is wrong") == 2)
    assert "the configuration is not taken, what runs goes on: config.toml: a is wrong" in process.said
    assert (process.running["gate"], gate.is_over) == (gate, False)


def test_a_reload_reads_no_bundle_in_the_main_thread(
    process: Process, gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, readers = bundle._read_regular, list[str]()

    def noted(path: Path, limit: int) -> bytes:
        readers.append(threading.current_thread().name)
        return read(path, limit)

    monkeypatch.setattr(bundle, "_read_regular", noted)
    process.reload()
    process.until_said("as before: gate")
    assert readers == ["edge-reload"]


def test_without_a_configuration_a_reload_says_so(process: Process) -> None:
    process.start(process.site.settings(), has_config=False)
    process.until_results("gate")
    process.stop.reload = True
    process.until_said("named on the command line")
    assert not process.ran.done()


def test_threads_beside_a_model_are_those_of_the_only_stream(process: Process, gate: Any) -> None:
    gate.threads = 3  # a model that has more than this one
    until(lambda: cv2.getNumThreads() == 3)
    process.reload(gate.settings, process.site.settings("yard"))
    until(lambda: cv2.getNumThreads() == 1)
    process.until_results("yard")
    process.reload(gate.settings)
    until(lambda: cv2.getNumThreads() == 3)


# How a configuration is read beside what runs.

Ask = Callable[[str], None]


@pytest.fixture
def ask(process: Process, gate: Any) -> Ask:
    """Have a command ask for a reload; what it is told is in `told`."""
    return lambda name: process.daemon._ask_to_reload(lambda why: process.told.append(f"{name}: {why}"))


def test_a_command_to_reload_during_a_reload_is_refused_at_once(process: Process, ask: Ask) -> None:
    process.may_read.clear()
    ask("first")
    until(lambda: process.reads == 1)
    ask("second")
    process.may_read.set()
    until(lambda: len(process.told) == 2)
    assert process.told == ["second: it is being read already; ask again once that is over", "first: "]
    assert process.reads == 1


def test_at_the_end_who_waits_for_a_reading_is_told(process: Process, ask: Ask) -> None:
    process.may_read.clear()
    ask("first")
    until(lambda: process.reads == 1)
    process.end()
    assert process.told == ["first: the program ends"]
    assert is_any_left()  # libraries are not taken down below what still reads
    process.may_read.set()
    until(lambda: not is_any_left())


def test_a_reload_waits_until_what_starts_has_begun(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    look, looks = Service._look_at_reload, threading.Semaphore(0)
    monkeypatch.setattr(Service, "_look_at_reload", lambda service: looks.release() or look(service))  # type: ignore[func-returns-value]
    with process.shared.turn(lambda: False):
        process.start(process.site.settings())
        process.stop.reload = True
        for _ in range(3):
            assert looks.acquire(timeout=WAIT_S)
        assert process.reads == 0
    process.until_results("gate")
    until(lambda: "configuration read again: as before: gate" in process.said)


def test_a_reading_that_fails_changes_nothing(
    process: Process, gate: Any, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object) -> None:
        raise RuntimeError("can't start new thread")

    good, process.config = process.config, ValueError("no")
    ask("first")
    until(lambda: len(process.told) == 1)
    with monkeypatch.context() as patched:
        patched.setattr("edge_sdk.service.service.BackgroundTask", refuse)
        ask("second")
        until(lambda: len(process.told) == 2)
    assert process.told[0].startswith("first: this is a bug in edge-sdk: ValueError: no")
    assert process.told[1].startswith("second: out of memory: ")
    process.config = good
    ask("third")
    until(lambda: process.told[2:] == ["third: "])
    assert process.running["gate"] is gate
