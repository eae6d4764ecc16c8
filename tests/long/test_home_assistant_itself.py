"""A device at Home Assistant itself, which `make home-assistant` installs: it needs a Python of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
    assert device.hass.template("{{ device_attr(device_id('sensor.pi_gate_rate'), 'manufacturer') }}") == "edge-sdk"
    assert device.hass.complaints() == []


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
