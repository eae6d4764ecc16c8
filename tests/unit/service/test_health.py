"""Health: what the service manager is told, how process and machine are, and how long a start took."""

import contextlib
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edge_sdk.core.clock import WallClock
from edge_sdk.core.logs import is_journal, line_for_people
from edge_sdk.core.protocols import Event
from edge_sdk.messages.schema import CameraHealth, Channel, TelemetryMessage
from edge_sdk.service.health import Alarms, Gauges, HealthReporter, Readings
from edge_sdk.service.output import Output
from edge_sdk.service.process import Notifier, Start
from edge_sdk.service.runner import Progress
from edge_sdk.service.settings import PipelineSettings
from tests.support.configs import write_files
from tests.support.connections import until
from tests.support.logs import SAID
from tests.support.service import Manager, Site

# The service manager, over a real datagram socket.


def _fill(manager: Manager) -> int:
    """Send until the socket takes no more; how many messages that took."""
    sent = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler, contextlib.suppress(BlockingIOError):
        filler.setblocking(False)
        while True:
            filler.sendto(b"x", manager.socket.getsockname())
            sent += 1
    return sent


def test_each_message_is_what_systemd_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(f"@edge-sdk-test-{os.getpid()}-{time.monotonic_ns()}")
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    notifier = Notifier.from_environment()
    assert "NOTIFY_SOCKET" not in os.environ
    notifier.starting(60)
    assert manager.hear() == ["EXTEND_TIMEOUT_USEC=60000000"]
    before_us = time.monotonic_ns() // 1000
    notifier.reloading()
    reloading, monotonic = manager.hear()
    assert (reloading, monotonic[:15]) == ("RELOADING=1", "MONOTONIC_USEC=")
    assert before_us <= int(monotonic[15:]) <= time.monotonic_ns() // 1000
    for status, shown in (("works\nat 10 °C\nREADY=0", "works at 10 °C READY=0"), ("x" * 10_000, "x" * 500)):
        notifier.ready(status)
        assert manager.hear() == ["READY=1", f"STATUS={shown}"]
    notifier.watchdog()
    notifier.stopping()
    assert (manager.hear(), manager.hear()) == (["WATCHDOG=1"], ["STOPPING=1"])
    notifier.close()
    notifier.watchdog()
    manager.close()


def test_the_environment_says_how_often_and_children_do_not_inherit_it() -> None:
    own = str(os.getpid())
    for watchdog, interval_s in (
        ({}, None),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": own}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
    ):
        environment = {"HOME": "/", "NOTIFY_SOCKET": "/run/systemd/notify", **watchdog}
        notifier = Notifier.from_environment(environment)
        assert (notifier.interval_s, environment) == (interval_s, {"HOME": "/"}), watchdog
        notifier.close()


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "/nowhere/at/all", "/" + "x" * 200, "@\0"])
def test_without_a_manager_that_listens_nobody_is_told(address: str | None) -> None:
    notifier = Notifier.from_environment({"WATCHDOG_USEC": "2000000"} | ({"NOTIFY_SOCKET": address} if address else {}))
    assert (notifier.interval_s is None) is not (address or "").startswith(("/", "@"))
    for _ in range(20):
        notifier.ready("works")
        notifier.watchdog()
    notifier.close()


def test_a_manager_that_reads_nothing_holds_nothing_up_and_is_told_all_later(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    notifier = Notifier(manager.address, 2.0)

    def say_to_a_full_socket(say: Callable[[], None]) -> None:
        sent = _fill(manager)
        say()
        assert [manager.hear() for _ in range(sent)] == [["x"]] * sent

    say_to_a_full_socket(lambda: notifier.ready("works"))
    notifier.reloading()
    notifier.repeat()  # nothing is left to send
    assert manager.hear()[:3] == ["READY=1", "STATUS=works", "RELOADING=1"]
    notifier.watchdog()
    assert manager.hear() == ["WATCHDOG=1"]
    say_to_a_full_socket(notifier.stopping)
    notifier.repeat()
    assert manager.hear() == ["STOPPING=1"]
    notifier.close()
    manager.close()


# When the watchdog is told that the process works.


def test_a_machine_that_was_paused_is_due_as_soon_as_its_pipelines_move() -> None:
    progress = Progress(10)
    with progress.begin() as after_step:
        assert progress.is_due(0)
        after_step()
        assert progress.is_due(10)
        assert not progress.is_due(10_000)  # nobody moved in all that time, and nobody could
        after_step()
        assert progress.is_due(10_000.2)


def test_a_pipeline_that_is_over_or_begins_is_not_waited_for() -> None:
    progress = Progress(10)
    with progress.begin():
        assert progress.is_due(0)
        assert not progress.is_due(10)
    assert progress.is_due(10)
    with progress.begin() as after_step:
        assert progress.is_due(20)  # it may take as long to load as it needs to
        assert not progress.is_due(30)
        after_step()
        assert progress.is_due(30)
    for now in range(40, 200, 10):  # no new one is taken for the one before
        with progress.begin():
            assert progress.is_due(now)


# Readings of the machine, and the alarms that they raise.

_FILES = {
    "proc/meminfo": "MemTotal: 4000000 kB\nMemAvailable:  2000000 kB",
    "proc/self/statm": "90000 25000 9000 1 0 60000 0",
    "proc/loadavg": "0.52 0.58 0.59 1/467 12345",
    "proc/uptime": "350735.47 234388.90",
    "proc/self/fd/0": "",
    "proc/self/fd/1": "",
    "proc/self/fd/17": "",
    "sys/class/thermal/thermal_zone0/temp": "48312",
    "sys/devices/platform/soc/soc:firmware/get_throttled": "50005",
}


def test_readings_are_what_the_files_say(tmp_path: Path) -> None:
    readings = Gauges(tmp_path / "not" / "yet", write_files(tmp_path, _FILES)).read()
    disk = os.statvfs(tmp_path)
    assert 0 < (readings.disk_free_mb or 0) <= (readings.disk_mb or 0)
    assert msgspec.structs.replace(readings, disk_free_mb=None) == Readings(
        temperature_c=48.312, under_voltage=True, throttled="under-voltage, the firmware throttles",
        memory_free_mb=2048.0, memory_rss_mb=25000 * os.sysconf("SC_PAGE_SIZE") / 1e6,
        disk_mb=disk.f_blocks * disk.f_frsize / 1e6, load1=0.52, uptime_s=350735.47, open_files=3,
        open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )  # fmt: skip


def test_a_process_without_a_descriptor_to_count_with_has_them_all() -> None:
    gauges, (soft, hard) = Gauges(None), resource.getrlimit(resource.RLIMIT_NOFILE)
    gauges.read()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        readings = gauges.read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (readings.open_files, readings.open_files_limit, readings.memory_rss_mb) == (3, 3, None)


def test_the_share_of_the_processor_is_of_one_core_between_two_readings(tmp_path: Path) -> None:
    clock = iter([100.0, 110.0, 110.0])
    gauges = Gauges(None, tmp_path, lambda: next(clock))
    assert gauges.read().cpu_share is None
    before = time.process_time()
    while time.process_time() - before < 0.1:
        pass
    assert 0.005 <= (gauges.read().cpu_share or 0) < 10  # a tenth of a second in ten, to the clock's tick
    assert gauges.read().cpu_share is None  # no time went by


def test_files_that_make_no_sense_or_are_not_there_are_unknown(tmp_path: Path) -> None:
    for text in ("", "\xff\xfe"):
        write_files(tmp_path, {name: text for name in _FILES if "/fd/" not in name})
        assert Gauges(None, tmp_path).read() == Readings()
    assert Gauges(None, tmp_path / "none").read() == Readings()


class _Told:
    def __init__(self) -> None:
        self.lines = list[tuple[str, str]]()
        self._alarms = Alarms(lambda name, line: self.lines.append((name, line)))

    def update(self, **readings: Any) -> list[tuple[str, bool]]:
        self.lines.clear()
        self._alarms.update(Readings(**readings))
        return [(name, bool(line)) for name, line in self.lines]


def test_an_alarm_is_said_once_and_is_over_at_another_level() -> None:
    for name, fine, wrong, between, said in (
        ("disk", {"disk_free_mb": 900, "disk_mb": 32000}, {"disk_free_mb": 499}, {"disk_free_mb": 600}, "499 MB"),
        ("memory", {"memory_free_mb": 200}, {"memory_free_mb": 60}, {"memory_free_mb": 70}, "60 MB are free"),
        ("hot", {"temperature_c": 60}, {"temperature_c": 81}, {"temperature_c": 77}, "81 degrees"),
        ("open_files", {"open_files": 5, "open_files_limit": 10}, {"open_files": 9}, {"open_files": 7}, "9 of 10"),
    ):
        told = _Told()
        assert [told.update(**fine), told.update(**fine | between)] == [[], []]
        assert told.update(**fine | wrong) == [(name, True)]
        assert said in told.lines[0][1]
        for readings in (fine | wrong, fine | between, {}):  # unknown: nobody says that it is better
            assert told.update(**readings) == []
        assert told.update(**fine) == [(name, False)]


def test_a_weak_power_supply_is_forgiven_after_a_minute_without() -> None:
    told = _Told()
    assert told.update(under_voltage=True) == [("under_voltage", True)]
    heard = [told.update(under_voltage=weak) for weak in [False] * 5 + [True] + [False] * 5]
    assert not any(heard)
    assert told.update(under_voltage=False) == [("under_voltage", False)]


# How long a start took.


def test_a_real_process_is_as_old_as_its_parent_saw() -> None:
    program = "import time; time.sleep(0.1); from edge_sdk.service.process import process_age_s as age; print(age())"
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.09 <= float(done.stdout) <= time.monotonic() - before + 1 / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("place", ["journal", "terminal"])
def test_lines_bear_a_priority_in_the_journal_and_the_name_of_the_program_elsewhere(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}" if place == "journal" else "")
    is_journal.cache_clear()
    for level, text, priority, words in (
        (logging.INFO, "source 0 is open", "<6>", "source 0 is open"),
        (logging.WARNING, "no key", "<4>", "warning: no key"),
        (logging.ERROR, "no such\n\x1b[2Jbundle", "<3>", "no such\ufffd\ufffd[2Jbundle"),
    ):
        assert line_for_people(text, level) == (priority if place == "journal" else "edge-sdk: ") + words
    is_journal.cache_clear()


# What the service manager, the broker and people are told of the process as a whole.

_GATE_HEALTH = CameraHealth(fps=12.5, age_p50_ms=30.0, results=100, dropped=1, reopenings=2)


class Stream(SimpleNamespace):
    def __init__(self, camera: str, title: str = "", health: CameraHealth | None = None) -> None:
        settings = PipelineSettings(camera=camera, source="pattern", bundle=Path("a.edge"))
        super().__init__(settings=settings, title=title, health=lambda: health)
        self.first_result_ns = self.model_ns = self.source_ns = 0


class Scene(Gauges):
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("edge_sdk.service.health.Periodic", self._begin_reading)
        self.site, self.now_s = Site(folder), 0.0
        self.manager = Manager(folder / "notify")
        self.told = self.manager.told
        self.said, self.progress = SAID, Progress(15.0)
        self.readings, self.watches = Readings(), list[Callable[[], None]]()
        self.start = Start(age_s=0.5)
        self.vitals = HealthReporter(
            Notifier(self.manager.address, watchdog_s=30.0), self.start, self.site.outlet, self.progress, gauges=self,
            clock_s=lambda: self.now_s,
        )  # fmt: skip

    def _begin_reading(self, call: Callable[[], None], _interval_s: float, _name: str) -> Any:
        self.watches.append(call)
        return SimpleNamespace(close=lambda: None)

    def read(self) -> Readings:
        return self.readings

    def look(self, *streams: Stream, have_begun: bool = True, turns: int = 0) -> None:
        self.vitals.look(streams, have_begun=have_begun, turns=turns)  # type: ignore[arg-type]

    def look_at(self, *streams: Stream, **readings: Any) -> None:
        self.readings = Readings(**readings)
        self.watches[0]()
        self.look(*streams)

    def telemetry(self) -> list[dict[str, object]]:
        return self.site.link.documents("telemetry")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path, monkeypatch)
    yield made
    made.vitals.close()
    made.site.close()
    made.manager.close()


def test_each_stream_has_its_time_to_start(scene: Scene) -> None:
    gate, more_time = Stream("gate", "tiny runs on 0"), ["EXTEND_TIMEOUT_USEC=330000000"]
    for turns, told in ((0, []), (1, more_time), (1, []), (2, more_time)):
        scene.look(gate, have_begun=False, turns=turns)
        assert scene.told() == told
    scene.look(gate, turns=2)
    assert scene.told()[0] == "READY=1\nSTATUS=tiny runs on 0"
    scene.look(gate, turns=3)
    assert scene.told() == []  # the start is over


def test_it_is_ready_once_all_streams_have_begun_and_one_of_them_runs(scene: Scene) -> None:
    gate, yard = Stream("gate", "tiny runs on 0"), Stream("yard")
    scene.look(gate, yard, have_begun=False)
    scene.look(yard)  # it failed, and will begin again
    assert (scene.told(), scene.watches) == ([], [])
    scene.look(gate, yard)
    scene.now_s = 1.0
    scene.look(gate, yard)
    assert (scene.told(), len(scene.watches)) == (["READY=1\nSTATUS=tiny runs on 0", "WATCHDOG=1"], 1)


def test_the_watchdog_hears_nothing_before_ready_and_then_only_while_all_streams_move(scene: Scene) -> None:
    gate = Stream("gate", "tiny")
    with scene.progress.begin() as first, scene.progress.begin() as second:
        for scene.now_s in (0.0, 15.0, 30.0):
            first()
            second()
            scene.look(gate, have_begun=False)
        assert scene.told() == []
        told = []
        for scene.now_s in (45.0, 46.0, 60.0, 75.0, 90.0, 91.0, 106.0):
            first()
            if not 60.0 < scene.now_s < 91.0:
                second()
            scene.look(gate)
            if scene.told()[-1:]:
                told.append(scene.now_s)
    assert told == [45.0, 60.0, 91.0, 106.0]


def test_the_duration_of_the_start_is_said_once_of_the_first_stream_with_a_result(scene: Scene) -> None:
    gate, yard = Stream("gate", "a"), Stream("yard", "b")
    scene.look(gate, yard)
    assert scene.said == []
    began_ns = scene.start._last_ns
    for stream, seconds in ((yard, (1, 2, 4)), (gate, (5, 6, 7))):
        stream.model_ns, stream.source_ns, stream.first_result_ns = (began_ns + after * 10**9 for after in seconds)
        scene.look(gate, yard)
    parts = "interpreter and command 0.50, model 1.00, source 1.00, first frame and result 2.00"
    assert scene.said == [f"first result 4.50 s after start ({parts})"]


def test_each_reading_is_published_once_with_all_streams(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, send = list[TelemetryMessage](), scene.site.outlet.telemetry
    monkeypatch.setattr(scene.site.outlet, "telemetry", lambda message: send(message) or sent.append(message))
    scene.site.stream()
    gate, yard = Stream("gate", "tiny", _GATE_HEALTH), Stream("yard")
    scene.look(gate, yard)
    scene.look_at(gate, yard, temperature_c=50.0, uptime_s=1000.5)
    until(lambda: len(scene.telemetry()) == 1)
    scene.look(gate, yard)
    scene.look(gate, yard)
    scene.look_at(gate, yard, throttled="under-voltage, the firmware throttles")
    until(lambda: bool(scene.telemetry()[-1]["throttled"]))
    first, second = scene.telemetry()
    assert first["cameras"] == {"gate": msgspec.to_builtins(_GATE_HEALTH)}
    assert (first["device"], first["temperature_c"], first["uptime_s"], first["throttled"]) == ("pi", 50.0, 1000.5, [])
    assert "memory_rss_mb" not in first  # unknown here
    assert (second["throttled"], len(sent)) == (["under-voltage", "the firmware throttles"], 2)


def test_telemetry_says_what_became_of_events_and_what_their_rate_left_out(scene: Scene) -> None:
    settings, site = scene.site.run_settings("gate"), scene.site
    assert settings.mqtt is not None
    mqtt = msgspec.structs.replace(settings.mqtt, events=Channel(qos=1, max_per_s=0.001))
    settings = msgspec.structs.replace(settings, mqtt=mqtt)
    scene.vitals._output = site.outlet = Output(settings, site.stop.is_asked, lambda: site.link)
    stream = site.stream()
    for kind in "abcd":
        stream.put(Event(kind=kind))
    nothing = {"overflow": 0, "age": 0, "quarantine": 0, "memory": 0, "disk": 0}
    expected = {"put": 1, "delivered": 1, "waiting": 0, "durable": True, "lost": nothing, "limited": 2}
    scene.look(Stream("gate", "tiny"))

    def told() -> bool:
        scene.look_at(Stream("gate", "tiny"))
        return expected in [document.get("events") for document in scene.telemetry()]

    until(told)


def test_alarms_reach_people_and_the_device_s_state_and_are_taken_back(scene: Scene) -> None:
    scene.site.stream()
    scene.look(Stream("gate", "tiny"))
    scene.look_at(temperature_c=81.0)
    until(lambda: list(scene.site.state().get("warnings", ())) == ["hot"])
    scene.look_at(temperature_c=50.0)
    until(lambda: "warnings" not in scene.site.state())
    begun, over = [line for line in scene.said if "hot" in line]
    assert begun.startswith("warning: the board is hot: 81 degrees; from 80 on it slows itself down")
    assert over == "over: the board is hot: 81 degrees"


def test_it_is_said_once_how_far_a_time_server_put_the_clock_forward(scene: Scene) -> None:
    answers, offsets = iter([False, True, True]), iter((0.0, 86400.0))
    scene.site.outlet.clock = WallClock(lambda: next(answers), lambda: next(offsets))
    scene.look(Stream("gate", "tiny"))
    for _ in range(2):
        scene.look_at(Stream("gate", "tiny"))
    [line] = scene.said
    assert line.startswith("the clock is set by a time server now: +86400.0 s")
