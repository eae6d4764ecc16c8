"""What is wrong with a device before it speaks to a broker, and when it goes on to another one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edge_sdk.daemon.outlet import Outlet
from edge_sdk.daemon.settings import PipelineSettings, RunSettings
from edge_sdk.publishing import MqttSettings
from tests.support.broker import Broker, Subscriber
from tests.support.results import make_encoder

pytestmark = pytest.mark.system


def _settings(broker: Broker) -> RunSettings:
    stream = PipelineSettings(camera="door", source="pattern", bundle=Path("none.edge"))
    return RunSettings(device="pi", mqtt=MqttSettings.parse(broker.url, device="pi"), pipelines=(stream,))


def _wait_for(subscriber: Subscriber, *wanted: dict[str, str]) -> None:
    """Wait until the states have had these warnings of the device, one after another."""

    def have_come(_messages: object) -> bool:
        states = iter(msgspec.json.decode(message.payload) for message in subscriber.messages("/state"))
        return all(any(state.get("warnings", {}) == warnings for state in states) for warnings in wanted)

    subscriber.wait_for(have_come, f"states with {wanted}")


@contextlib.contextmanager
def _closing(outlet: Outlet) -> Iterator[None]:
    try:
        yield
    finally:
        outlet.close(5.0)


def test_a_warning_waits_for_the_first_stream_and_for_another_broker(broker: Broker, tmp_path: Path) -> None:
    outlet = Outlet(_settings(broker), lambda _line: None, lambda: False)
    outlet.warn("gate", "no such bundle")
    outlet.warn("disk", "12 MB are free")
    outlet.warn("hot", "82 degrees")
    outlet.warn("hot", "")
    outlet.warn("memory", "")  # never was
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    with Broker(other_folder) as other, Subscriber(broker) as here, Subscriber(other) as there:
        with _closing(outlet):
            outlet.stream("door", make_encoder(outlet.identity))
            both = {"gate": "no such bundle", "disk": "12 MB are free"}
            _wait_for(here, both)
            outlet.warn("gate", "")
            _wait_for(here, both, {"disk": "12 MB are free"})
        successor = outlet.successor(_settings(other))
        with _closing(successor):
            successor.stream("door", make_encoder(successor.identity))
            _wait_for(there, {"disk": "12 MB are free"})
            successor.warn("disk", "")
            _wait_for(there, {"disk": "12 MB are free"}, {})


def test_a_file_that_is_not_there_is_no_other_streams_matter(capfd: pytest.CaptureFixture[str]) -> None:
    """On standard output, too, where what it is decides whether results may be dropped."""
    streams = tuple(
        PipelineSettings(camera=camera, source=source, bundle=Path("none.edge"))
        for camera, source in (("late", "nowhere.avi"), ("door", "pattern"))
    )
    with capfd.disabled():
        outlet = Outlet(RunSettings(device="pi", pipelines=streams), lambda _line: None, lambda: False)
        with _closing(outlet):
            assert outlet.stream("door", make_encoder(outlet.identity)).camera == "door"
