"""What the service manager, the broker and people are told of the process as a whole."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edge_sdk.daemon.outlet import Outlet
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.daemon.vitals import Vitals
from edge_sdk.event import Event
from edge_sdk.health.notify import Notifier
from edge_sdk.health.progress import Beat, Progress
from edge_sdk.health.readings import Gauges
from edge_sdk.health.start import Start
from edge_sdk.health.watch import HealthWatch, Tell
from edge_sdk.publishing import CameraHealth, Channel
from tests.device.delivery import until
from tests.device.site import Site

_GATE_HEALTH = CameraHealth(fps=12.5, age_p50_ms=30.0, results=100, dropped=1, reopenings=2)


class Stream:
    """What is looked at of a pipeline."""

    def __init__(self, camera: str, title: str = "", health: CameraHealth | None = None) -> None:
        self.settings = PipelineSettings(camera=camera, source="pattern", bundle=Path("a.edge"))
        self.title, self._health = title, health
        self.first_result_ns = self.model_ns = self.source_ns = 0

    def health(self) -> CameraHealth | None:
        return self._health


class Scene:
    """Vitals with a service manager, a broker, a machine made of files, and a clock that is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.site, self.root, self.now_s = Site(folder), folder / "root", 0.0
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(folder / "notify"))
        self.manager.setblocking(False)
        self.set("sys/class/thermal/thermal_zone0/temp", "50000")
        self.set("proc/uptime", "1000.5 2000")
        self.said, self.progress, self.start_ns = list[str](), Progress(15.0), 10 * 10**9
        self.vitals = Vitals(
            Notifier(str(folder / "notify"), watchdog_s=30.0),
            Start(age_s=0.5, clock_ns=lambda: self.start_ns),
            self.said.append,
            self.site.outlet,
            self.progress,
            begin_watch=self._begin_watch,
            clock_s=lambda: self.now_s,
        )
        self.watches = 0

    def _begin_watch(self, tell: Tell) -> HealthWatch:
        self.watches += 1
        return HealthWatch(Gauges(None, self.root), tell, 0.01)

    def set(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name("fresh")
        fresh.write_text(text)
        fresh.replace(path)  # whoever reads sees one or the other

    def look(self, *streams: Stream, have_begun: bool = True) -> None:
        self.vitals.look(streams, have_begun=have_begun)  # type: ignore[arg-type]

    def told(self) -> list[str]:
        """What the service manager was told since."""
        messages = list[str]()
        while select.select([self.manager], [], [], 0)[0]:
            messages.append(self.manager.recv(4096).decode())
        return messages

    def telemetry(self) -> list[dict[str, object]]:
        return self.site.link.documents("telemetry")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.vitals.close()
    made.site.close()
    made.manager.close()


def test_each_stream_has_its_time_to_start(scene: Scene) -> None:
    """Before that is over systemd does not end a start in which many bundles are tried."""
    gate = Stream("gate", "tiny runs on 0")
    for turns, told in (
        (0, []),
        (1, ["EXTEND_TIMEOUT_USEC=330000000"]),
        (1, []),
        (2, ["EXTEND_TIMEOUT_USEC=330000000"]),
    ):
        scene.vitals.look([gate], have_begun=False, turns=turns)  # type: ignore[list-item]
        assert scene.told() == told
    scene.vitals.look([gate], have_begun=True, turns=2)  # type: ignore[list-item]
    assert scene.told()[0] == "READY=1\nSTATUS=tiny runs on 0"
    scene.vitals.look([gate], have_begun=True, turns=3)  # type: ignore[list-item]
    assert scene.told() == []  # the start is over


def test_it_is_ready_once_all_streams_have_begun_and_one_of_them_runs(scene: Scene) -> None:
    gate, yard = Stream("gate", "tiny runs on 0"), Stream("yard")
    scene.look(gate, yard, have_begun=False)
    scene.look(yard, have_begun=True)  # it failed, and will begin again
    assert (scene.told(), scene.watches) == ([], 0)
    scene.look(gate, yard)
    scene.now_s = 1.0
    scene.look(gate, yard)
    assert scene.told() == ["READY=1\nSTATUS=tiny runs on 0", "WATCHDOG=1"]
    assert scene.watches == 1


def test_several_streams_are_named_together(scene: Scene) -> None:
    scene.look(Stream("gate", "tiny runs on 0"), Stream("yard", "large runs on 1"))
    assert scene.told()[0] == "READY=1\nSTATUS=2 streams: tiny runs on 0, large runs on 1"


def _step(*beats: Beat) -> None:
    for beat in beats:
        beat.after_step()


def test_the_watchdog_hears_nothing_before_ready_and_then_only_while_all_streams_move(scene: Scene) -> None:
    gate, first, second = Stream("gate", "tiny"), scene.progress.begin(), scene.progress.begin()
    for scene.now_s in (0.0, 15.0, 30.0):
        _step(first, second)
        scene.look(gate, have_begun=False)
    assert scene.told() == []
    told = []
    for scene.now_s in (45.0, 46.0, 60.0, 75.0, 90.0, 91.0, 106.0):
        _step(*((first,) if 60.0 < scene.now_s < 91.0 else (first, second)))
        scene.look(gate)
        told.append((scene.now_s, scene.told()[-1:]))
    assert [now_s for now_s, messages in told if messages] == [45.0, 60.0, 91.0, 106.0]


def test_without_a_manager_that_asks_for_it_there_is_no_watchdog(scene: Scene) -> None:
    scene.vitals._notifier.close()
    scene.vitals._notifier = Notifier(str(scene.site.folder / "notify"))
    for scene.now_s in (0.0, 100.0):
        scene.look(Stream("gate", "tiny"))
    assert scene.told() == ["READY=1\nSTATUS=tiny"]


def test_what_the_start_took_is_said_once_of_the_first_stream_with_a_result(scene: Scene) -> None:
    gate, yard = Stream("gate", "a"), Stream("yard", "b")
    scene.look(gate, yard)
    assert scene.said == []
    yard.model_ns, yard.source_ns, yard.first_result_ns = 11 * 10**9, 12 * 10**9, 14 * 10**9
    scene.look(gate, yard)
    gate.model_ns, gate.source_ns, gate.first_result_ns = 15 * 10**9, 16 * 10**9, 17 * 10**9
    scene.look(gate, yard)
    assert scene.said == [
        "first result 4.50 s after start (interpreter and command 0.50, model 1.00, source 1.00, "
        "first frame and result 2.00)"
    ]


def test_telemetry_goes_out_with_each_reading_and_holds_the_streams_that_run(scene: Scene) -> None:
    scene.site.stream()
    gate, yard = Stream("gate", "tiny", _GATE_HEALTH), Stream("yard")

    def look_until(count: int) -> None:
        def enough() -> bool:
            scene.look(gate, yard)
            return len(scene.telemetry()) >= count

        until(enough)

    look_until(3)
    first = scene.telemetry()[0]
    assert first["cameras"] == {
        "gate": {"fps": 12.5, "age_p50_ms": 30.0, "results": 100, "dropped": 1, "reopenings": 2}
    }
    assert (first["device"], first["temperature_c"], first["uptime_s"], first["throttled"]) == ("pi", 50.0, 1000.5, [])
    assert "memory_rss_mb" not in first  # unknown here
    scene.vitals.close()
    until(lambda: "edge-health" not in {thread.name for thread in threading.enumerate()})
    scene.look(gate, yard)
    time.sleep(0.1)
    count = len(scene.telemetry())
    scene.look(gate, yard)  # no reading is told twice
    time.sleep(0.1)
    assert len(scene.telemetry()) == count


def test_telemetry_says_what_became_of_events_and_what_their_rate_left_out(scene: Scene) -> None:
    settings, site = scene.site.run_settings("gate"), scene.site
    assert settings.mqtt is not None
    mqtt = msgspec.structs.replace(settings.mqtt, events=Channel(qos=1, max_per_s=0.001))
    settings = msgspec.structs.replace(settings, mqtt=mqtt)
    scene.vitals.outlet = site.outlet = Outlet(settings, site.said.append, site.stop.is_asked, lambda: site.link)
    stream = site.stream()
    for kind in "abcd":
        stream.put(Event(kind=kind))
    nothing = {"overflow": 0, "age": 0, "quarantine": 0, "memory": 0, "disk": 0}
    expected = {"put": 1, "delivered": 1, "waiting": 0, "durable": True, "lost": nothing, "limited": 2}

    def told() -> bool:
        scene.look(Stream("gate", "tiny"))
        return expected in [document.get("events") for document in scene.telemetry()]

    until(told)


def test_alarms_reach_people_and_the_device_s_state_and_are_taken_back(scene: Scene) -> None:
    scene.site.stream()
    scene.look(Stream("gate", "tiny"))
    scene.set("sys/class/thermal/thermal_zone0/temp", "81000")
    until(lambda: len(scene.said) == 1)
    hot = "the board is hot: 81 degrees; from 80 on it slows itself down, so cool it"
    assert scene.said == [f"warning: {hot}"]
    until(lambda: scene.site.state().get("warnings") == {"hot": hot})
    scene.set("sys/class/thermal/thermal_zone0/temp", "70000")
    until(lambda: len(scene.said) == 2)
    assert scene.said[1] == "over: the board is hot: 81 degrees"
    until(lambda: "warnings" not in scene.site.state())


def test_a_reload_is_told_from_its_beginning_to_its_end_and_says_what_it_is_given(scene: Scene) -> None:
    gate = Stream("gate", "tiny runs on 0")
    scene.look(gate)
    scene.told()
    scene.vitals.reloading()
    scene.look(gate, have_begun=False)
    [message] = scene.told()
    assert message.startswith("RELOADING=1\nMONOTONIC_USEC=")
    gate.title = "tiny runs on 1"
    scene.look(gate)
    assert scene.told() == ["READY=1\nSTATUS=tiny runs on 1"]
    scene.vitals.reloading("there is nothing to read")
    scene.look(gate)
    assert scene.told()[1:] == ["READY=1\nSTATUS=there is nothing to read"]
    assert scene.watches == 1
    scene.vitals.stopping()
    assert scene.told() == ["STOPPING=1"]


def test_by_default_it_is_this_machine_that_is_read(tmp_path: Path) -> None:
    site = Site(tmp_path)
    vitals = Vitals(Notifier(), Start(0.0), site.said.append, site.outlet, Progress(1.0))
    site.stream()

    def has_told() -> bool:
        vitals.look([Stream("gate", "tiny")], have_begun=True)  # type: ignore[list-item]
        return bool(site.link.documents("telemetry"))

    until(has_told)
    assert site.link.documents("telemetry")[0]["disk_free_mb"] > 0
    vitals.close()
    site.close()
