"""A device at Home Assistant itself, which `make home-assistant` installs: it needs a Python of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest

from tests.support.broker import Broker, wait_until
from tests.support.home_assistant import Hass, Home
from tests.support.requester import Requester, running, write_config

_PROGRAM = os.environ.get("EDGE_SDK_HASS", "")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not _PROGRAM, reason="Home Assistant needs a Python of its own: `make home-assistant`"),
]

_CAMERAS = {"gate": "pattern:320x240@20", "back yard": "pattern:320x240@5"}
_LINES = '[home_assistant]\nlabels = ["red", "blue"]\n[[events]]\nlabels = ["red"]\n'
_EMPTY = {"button", "image", "event"}  # kinds that show nothing before something was pressed, sent, happened


class _House(NamedTuple):
    hass: Hass
    requester: Requester
    config: Path
    broker: Broker
    bundle: Path


@pytest.fixture(scope="module")
def house(cell_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_House]:
    folder = tmp_path_factory.mktemp("house")
    with Broker(folder) as broker, Hass(_PROGRAM, tmp_path_factory.mktemp("hass"), broker) as hass:
        config = write_config(folder / "config.toml", broker, cell_bundle, cameras=_CAMERAS, lines=_LINES)
        with Requester(broker) as requester:
            yield _House(hass, requester, config, broker, cell_bundle)


@pytest.fixture
def device(house: _House) -> Iterator[_House]:
    write_config(house.config, house.broker, house.bundle, cameras=_CAMERAS, lines=_LINES)
    with running(house.config):
        house.hass.wait_state("switch.pi_gate", "on")
        house.hass.wait_state("switch.pi_back_yard", "on")
        yield house


def test_everything_that_is_told_is_there(device: _House) -> None:
    told = Home(device.requester).wait_discovery()["components"]
    wait_until(lambda: len(device.hass.states()) == len(told), f"{len(told)} entities")
    kinds = {f"{entity.partition('.')[0]}" for entity in device.hass.states()}
    assert kinds == {component["platform"] for component in told.values()}
    device.hass.wait_state("binary_sensor.pi_gate_connected", "on")

    def silent() -> list[str]:
        states = device.hass.states().items()
        return [name for name, found in states if found["state"] in ("unknown", "unavailable")]

    # Rates and ages come with the first telemetry.
    wait_until(lambda: {name.partition(".")[0] for name in silent()} <= _EMPTY, f"states of {silent()}")
    assert 15 < float(str(device.hass.state("sensor.pi_gate_rate"))) < 21
    assert device.hass.complaints() == []


def test_it_is_one_device_with_its_versions(device: _House) -> None:
    of = "device_attr(device_id('sensor.pi_gate_rate'), '{}')"
    names = [device.hass.template("{{ " + of.format(name) + " }}") for name in ("name", "manufacturer", "sw_version")]
    assert names[:2] == ["pi", "edge-sdk"]
    assert names[2][0].isdigit()
    entities = "{{ device_entities(device_id('sensor.pi_gate_rate')) | length }}"
    wait_until(lambda: device.hass.template(entities) == str(len(device.hass.states())), "all of one device")


def test_counts_and_events_are_of_the_results(device: _House) -> None:
    hass = device.hass
    wait_until(
        lambda: hass.state("sensor.pi_gate_red_count") not in (None, "unknown", "unavailable", "0"), "something red"
    )
    hass.wait_state("binary_sensor.pi_gate_red_occupancy", "on")
    hass.wait_state("binary_sensor.pi_gate_blue_occupancy", "on", "off")
    wait_until(lambda: hass.states()["event.pi_gate_events"]["attributes"].get("label") == "red", "an event")
    attributes = hass.states()["event.pi_gate_events"]["attributes"]
    assert attributes["event_type"] in ("appeared", "disappeared")
    assert attributes["seq"] in {event["seq"] for event in device.requester.documents("/event/gate")}


def test_a_camera_is_switched_off_and_on(device: _House) -> None:
    hass, requester = device.hass, device.requester
    hass.act("switch.turn_off", "switch.pi_gate")
    hass.wait_state("switch.pi_gate", "off")
    hass.wait_state("sensor.pi_gate_count", "unavailable")
    before = len(requester.messages)
    requester.wait_results(5, "back yard")
    assert requester.documents("/result/gate", before) == []
    hass.act("switch.turn_on", "switch.pi_gate")
    hass.wait_state("switch.pi_gate", "on")
    requester.wait_results(2)
    wait_until(lambda: str(hass.state("sensor.pi_gate_count")).isdigit(), "the count again")


def test_numbers_act_on_results(device: _House) -> None:
    hass, requester = device.hass, device.requester
    hass.act("number.set_value", "number.pi_gate_confidence", value=0.99)
    hass.wait_state("number.pi_gate_confidence", "0.99")
    requester.wait_latest(lambda results: not any(r["detections"] for r in results), "no detections")
    hass.wait_state("binary_sensor.pi_gate_occupancy", "off")
    hass.act("number.set_value", "number.pi_gate_rate_limit", value=2)
    hass.wait_state("number.pi_gate_rate_limit", "2.0")
    requester.wait_latest(lambda results: np.min(np.diff([r["seq"] for r in results])) >= 8, "every tenth frame")


def test_a_picture_is_taken_and_shown(device: _House) -> None:
    device.hass.act("button.press", "button.pi_gate_take_snapshot")
    wait_until(lambda: bool(device.hass.picture("image.pi_gate_snapshot")), "the picture")
    picture = cv2.imdecode(np.frombuffer(device.hass.picture("image.pi_gate_snapshot"), np.uint8), cv2.IMREAD_COLOR)
    assert picture.shape == (240, 320, 3)


def test_after_its_restart_all_is_as_it_was(device: _House) -> None:
    hass = device.hass
    before = set(hass.states())
    hass.stop()
    hass.start()
    hass.wait_state("switch.pi_gate", "on")
    wait_until(lambda: str(hass.state("sensor.pi_gate_count")).isdigit(), "the count again")
    assert set(hass.states()) == before
    assert hass.complaints() == []


def test_a_device_that_stops_is_unavailable(house: _House) -> None:
    with running(house.config):
        house.hass.wait_state("switch.pi_gate", "on")
    house.hass.wait_state("switch.pi_gate", "unavailable")
    assert {found["state"] for found in house.hass.states().values()} == {"unavailable"}


def test_a_camera_and_a_device_are_taken_away(device: _House) -> None:
    hass, config = device.hass, device.config
    gate_only = {"gate": _CAMERAS["gate"]}
    write_config(config, device.broker, device.bundle, cameras=gate_only, lines=_LINES)
    device.requester.do("reload")
    wait_until(lambda: not any("back_yard" in name for name in hass.states()), "one camera")
    assert hass.state("switch.pi_gate") == "on"
    off = _LINES.replace("[home_assistant]", "[home_assistant]\nenabled = false")
    write_config(config, device.broker, device.bundle, cameras=gate_only, lines=off)
    device.requester.do("reload")
    wait_until(lambda: hass.states() == {}, "no device")
    assert hass.complaints() == []
