"""Vitals: what the service manager, the broker and people are told of the process as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edge_sdk.core.clock import WallClock
from edge_sdk.core.protocols import Event
from edge_sdk.messages.schema import CameraHealth, Channel, TelemetryMessage
from edge_sdk.service.health import Gauges, HealthReporter, Readings
from edge_sdk.service.output import Output
from edge_sdk.service.process import Notifier, Progress, Start
from edge_sdk.service.settings import PipelineSettings
from tests.support.connections import until
from tests.support.logs import SAID
from tests.support.service import Manager, Site

_GATE_HEALTH = CameraHealth(fps=12.5, age_p50_ms=30.0, results=100, dropped=1, reopenings=2)


class Stream:
    """What is looked at of a pipeline."""

    def __init__(self, camera: str, title: str = "", health: CameraHealth | None = None) -> None:
        self.settings = PipelineSettings(camera=camera, source="pattern", bundle=Path("a.edge"))
        self.title, self._health = title, health
        self.first_result_ns = self.model_ns = self.source_ns = 0

    def health(self) -> CameraHealth | None:
        return self._health


class Scene(Gauges):
    """Vitals with a service manager, a broker, gauges and a clock that a test sets."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("edge_sdk.service.health.Periodic", self._begin_reading)
        self.site, self.now_s = Site(folder), 0.0
        self.manager = Manager(folder / "notify")
        self.told = self.manager.told
        self.said, self.progress = SAID, Progress(15.0)
        self.readings, self.watches = Readings(), list[Callable[[], None]]()
        self.start = Start(age_s=0.5)
        self.vitals = HealthReporter(
            Notifier(self.manager.address, watchdog_s=30.0),
            self.start,
            self.site.outlet,
            self.progress,
            gauges=self,
            clock_s=lambda: self.now_s,
        )

    def _begin_reading(self, call: Callable[[], None], _interval_s: float, _name: str) -> Any:
        self.watches.append(call)
        return SimpleNamespace(close=lambda: None)

    def read(self) -> Readings:
        return self.readings

    def look(self, *streams: Stream, have_begun: bool = True, turns: int = 0) -> None:
        self.vitals.look(streams, have_begun=have_begun, turns=turns)  # type: ignore[arg-type]

    def look_at(self, *streams: Stream, **readings: Any) -> None:
        """Look at a new reading of the machine."""
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
    """Before that is over systemd does not end a start in which many bundles are tried."""
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
    assert scene.told() == ["READY=1\nSTATUS=tiny runs on 0", "WATCHDOG=1"]
    assert len(scene.watches) == 1


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
    yard.model_ns, yard.source_ns, yard.first_result_ns = (began_ns + after * 10**9 for after in (1, 2, 4))
    scene.look(gate, yard)
    gate.model_ns, gate.source_ns, gate.first_result_ns = (began_ns + after * 10**9 for after in (5, 6, 7))
    scene.look(gate, yard)
    assert scene.said == [
        "first result 4.50 s after start (interpreter and command 0.50, model 1.00, source 1.00, "
        "first frame and result 2.00)"
    ]


def test_each_reading_is_published_once_with_the_health_of_the_streams_that_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert first["cameras"] == {
        "gate": {"fps": 12.5, "age_p50_ms": 30.0, "results": 100, "dropped": 1, "reopenings": 2}
    }
    assert (first["device"], first["temperature_c"], first["uptime_s"], first["throttled"]) == ("pi", 50.0, 1000.5, [])
    assert "memory_rss_mb" not in first  # unknown here
    assert second["throttled"] == ["under-voltage", "the firmware throttles"]
    assert len(sent) == 2


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


def test_a_reload_is_told_from_its_beginning_to_its_end_and_says_what_it_is_given(scene: Scene) -> None:
    gate = Stream("gate", "tiny runs on 0")
    scene.look(gate)
    scene.told()
    scene.vitals.reloading()
    scene.look(gate, have_begun=False)
    [message] = scene.told()
    assert message.startswith("RELOADING=1\nMONOTONIC_USEC=")
    gate.title = "tiny runs on 1"
    scene.look(gate, Stream("yard", "large runs on 2"))
    assert scene.told() == ["READY=1\nSTATUS=2 pipelines: tiny runs on 1, large runs on 2"]
    scene.vitals.reloading("there is nothing to read")
    scene.look(gate)
    assert scene.told()[1:] == ["READY=1\nSTATUS=there is nothing to read"]
    assert len(scene.watches) == 1
    scene.vitals.stopping()
    assert scene.told() == ["STOPPING=1"]


def test_it_is_said_once_how_far_a_time_server_put_the_clock_forward(scene: Scene) -> None:
    answers, offsets = iter([False, True, True]), iter((0.0, 86400.0))
    scene.site.outlet.clock = WallClock(lambda: next(answers), lambda: next(offsets))
    scene.look(Stream("gate", "tiny"))
    for _ in range(2):
        scene.look_at(Stream("gate", "tiny"))
    [line] = scene.said
    assert line.startswith("the clock is set by a time server now: +86400.0 s")
