"""Home Assistant over a real broker: found at once, again after its birth, gone when it shall be; its controls act."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker, wait_until
from tests.support.requester import DEVICE, Home, Requester, running, write_config

pytestmark = pytest.mark.system

_TABLE = '[home_assistant]\nlabels = ["red", "blue", "zebra"]\n'
# On a CPU without VNNI the little model is certain of red in a frame now and then, so gone is what is gone at once.
_EVENTS = '[[events]]\nlabels = ["red"]\ncameras = ["gate"]\ndisappear_s = 0.1\n'
_BOTH = {"gate": "pattern:320x240@10", "yard": "pattern:320x240@10"}


@pytest.fixture(scope="module")
def broker(cell_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("home")
    with Broker(folder) as found:
        cameras = {"gate": "pattern:320x240@20", "o'\"d {{x}} ü": "pattern:320x240@5"}
        path = write_config(folder, found, cell_bundle, cameras=cameras, lines=_TABLE + _EVENTS)
        with running(path), Requester(found) as requester:
            requester.wait_results()
            home = Home(requester)
            # The state tells of a camera before Home Assistant is told of it.
            wait_until(lambda: "fps-o" in str(home.discoveries()[-1:]), "the second camera")
            yield found


@pytest.fixture
def home(broker: Broker) -> Iterator[Home]:
    with Requester(broker) as requester:
        found = Home(requester)
        found.wait_discovery()
        wait_until(lambda: bool(requester.documents("/seen/gate")), "what is seen")
        yield found


def test_one_retained_message_tells_of_the_device(home: Home) -> None:
    latest = home.wait_discovery()
    assert set(latest) == {"device", "origin", "availability", "components"}
    wait_until(lambda: home.is_available("fps-gate"), "the status, which comes in its own turn")
    home.wait_state("connected-gate", "ON")
    home.wait_state("switch-gate", "False")


def test_counts_follow_the_results(home: Home) -> None:
    home.wait_state("occupancy-gate", "ON")
    wait_until(lambda: home.state("count_red-gate") not in (None, "0"), "something red")
    assert home.state("count_blue-gate") is not None


def test_it_is_said_again_when_home_assistant_is_there(home: Home) -> None:
    before, told = len(home.requester.messages), home.discoveries()[-1]
    home.birth("offline")
    home.birth()
    assert home.wait_discovery(before) == told
    assert len(home.discoveries(before)) == 1


def test_the_switch_and_the_numbers_act_on_results(home: Home) -> None:
    requester = home.requester
    home.send("switch-gate", "off")
    home.wait_state("switch-gate", "True")
    wait_until(lambda: not home.is_available("count-gate"), "no count of a camera that is off")

    def is_silent() -> bool:  # once what was under way has come
        before = len(requester.messages)
        requester.wait_results(5, "o'\"d {{x}} ü")
        return requester.documents("/result/gate", before) == []

    wait_until(is_silent, "no results of a camera that is off")
    home.send("switch-gate", "on")
    wait_until(lambda: home.is_available("count-gate"), "the count again")
    home.send("confidence-gate", 0.99)
    home.wait_state("confidence-gate", "0.99")
    home.wait_state("occupancy-gate", "OFF")
    wait_until(lambda: home.state("events-gate") is not None, "an event of what is gone")
    event = json.loads(str(home.state("events-gate")))
    assert event["event_type"] in home.entity("events-gate")["event_types"]
    assert event["label"] == "red"
    home.send("confidence-gate", 0.25)
    home.wait_state("occupancy-gate", "ON")
    for rate, shown in ((2, "2.0"), (0, "0.0")):  # what they do to results, test_commands.py shows
        home.send("rate-gate", rate)
        home.wait_state("rate-gate", shown)


def test_what_is_gone_is_taken_away(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        path = write_config(tmp_path, broker, cell_bundle, cameras=_BOTH, lines=_TABLE)
        with running(path), Requester(broker) as requester:
            home = Home(requester)
            wait_until(lambda: "fps-yard" in str(home.discoveries()[-1:]), "both cameras")
            write_config(tmp_path, broker, cell_bundle, cameras={"gate": _BOTH["gate"]}, lines=_TABLE)
            requester.do("reload")
            wait_until(lambda: home.discoveries()[-1]["components"]["fps-yard"] == {"platform": "sensor"}, "one camera")
            wait_until(lambda: _last(requester, "/seen/yard") == b"", "no count of the other")
            write_config(tmp_path, broker, cell_bundle, allow=("reload",), lines=_TABLE)
            requester.do("reload")
            taken = {"platform": "switch"}
            wait_until(lambda: home.discoveries()[-1]["components"]["switch-gate"] == taken, "fewer controls")
            assert home.entity("fps-gate")["state_topic"] == f"{DEVICE}/telemetry"
            write_config(tmp_path, broker, cell_bundle, lines="[home_assistant]\nenabled = false\n")
            requester.do("reload")
            wait_until(lambda: home.discoveries()[-1] == "", "the device is taken back")
            wait_until(lambda: _last(requester, "/seen/gate") == b"", "and what it saw")


def _last(requester: Requester, ending: str) -> bytes | None:
    came = [m.payload for m in requester.messages if m.topic.endswith(ending)]
    return came[-1] if came else None


def test_after_an_outage_all_is_as_it_was(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        path = write_config(tmp_path, broker, cell_bundle, lines=_TABLE)
        with running(path) as device:
            with Requester(broker) as requester:
                Home(requester).wait_discovery()
                requester.do("set_threshold", camera="gate", confidence=0.99)
            broker.kill()
            broker.start()  # it has forgotten everything
            with Requester(broker) as requester:
                home = Home(requester)
                home.wait_discovery()
                home.wait_state("confidence-gate", "0.99")
                assert requester.do("report_state")["state"]["cameras"]["gate"]["controls"]["confidence"] == 0.99
                assert f"{DEVICE}/cmd" in home.entity("switch-gate")["command_topic"]
            assert device.lines_with("command set_threshold")
            assert len(device.lines_with("'zebra' is no label of a bundle here")) == 1
