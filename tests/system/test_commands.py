"""Commands over a real broker, by hand and by the controls of Home Assistant: each does what it says, or is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge_sdk.publishing.client import WINDOW
from tests.support.broker import Broker, DeafBroker, Proxy, wait_until
from tests.support.requester import ALL, DEVICE, Home, Requester, running, write_config

pytestmark = pytest.mark.system
_PAUSE = b'{"command":"pause","camera":"gate"}'


_TABLE = '[home_assistant]\nlabels = ["red", "blue", "zebra"]\n'
# On a CPU without VNNI the little model is certain of red in a frame now and then, so gone is what is gone at once.
_EVENTS = '[[events]]\nlabels = ["red"]\ncameras = ["gate"]\ndisappear_s = 0.1\n'


@pytest.fixture(scope="module")
def broker(cell_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("commands")
    with Broker(folder) as found:
        cameras = {"gate": "pattern:320x240@20", "o'\"d {{x}} ü": "pattern:320x240@5"}
        allow = tuple(name for name in ALL if name != "reload")
        path = write_config(folder, found, cell_bundle, allow=allow, cameras=cameras, lines=_TABLE + _EVENTS)
        with running(path), Requester(found) as requester:
            requester.wait_results()
            home = Home(requester)
            # The state tells of a camera before Home Assistant is told of it.
            wait_until(lambda: "fps-o" in str(home.discoveries()[-1:]), "the second camera")
            yield found


@pytest.fixture
def requester(broker: Broker) -> Iterator[Requester]:
    with Requester(broker) as client:
        yield client


def _wait_controls(requester: Requester, **fields: Any) -> None:
    wait_until(lambda: fields.items() <= requester.controls().items(), f"{fields} in the state")


def test_a_camera_pauses_and_goes_on_where_it_is(requester: Requester) -> None:
    requester.do("pause", camera="gate")
    _wait_controls(requester, paused=True)
    last = [{"seq": 0}, *requester.documents("/result/gate")][-1]["seq"]
    before = len(requester.messages)
    answer = requester.ask({"command": "snapshot", "camera": "gate"})
    assert (answer["error"]["code"], "picture" in answer) == ("not_possible", False)
    # Telemetry comes every ten seconds, and the first may have been due: one of which most was a pause.
    wait_until(lambda: any(t["cameras"]["gate"]["fps"] < 5 for t in requester.documents("/telemetry", before)), "pause")
    # A step that was waiting for its frame when the pause came takes that one.
    assert len(requester.documents("/result/gate", before)) <= 1
    requester.do("resume", camera="gate")
    # The frames of seconds passed unseen: what runs is what the camera sees now.
    assert requester.wait_results()[0]["seq"] > last + 20
    _wait_controls(requester, paused=False)


def test_the_rate_is_kept_and_given_up(requester: Requester) -> None:
    requester.do("set_rate", camera="gate", max_fps=4)
    _wait_controls(requester, max_fps=4.0)
    # Of 20 a second every fifth; a busy machine leaves more out, and makes up for some.
    requester.wait_latest(lambda results: np.min(np.diff([r["seq"] for r in results])) >= 4, "every fifth frame")
    requester.do("set_rate", camera="gate", max_fps=0)
    _wait_controls(requester, max_fps=0.0)
    requester.wait_latest(lambda results: np.min(np.diff([r["seq"] for r in results])) == 1, "frames in a row")


def test_a_snapshot_is_the_picture_of_a_frame(requester: Requester) -> None:
    answer = requester.do("snapshot", camera="gate", width=160, id="mine")
    picture = answer["picture"]
    wait_until(lambda: any(m.topic == picture["topic"] for m in requester.messages), "the picture")
    [message] = [m for m in requester.messages if m.topic == picture["topic"]]
    shown = [picture[name] for name in ("topic", "width", "height", "bytes")]
    assert shown == [f"{DEVICE}/snapshot/gate", 160, 120, len(message.payload)]
    assert (answer["id"], message.retain, message.properties.ContentType) == ("mine", False, "image/jpeg")
    image = cv2.imdecode(np.frombuffer(message.payload, np.uint8), cv2.IMREAD_COLOR)
    assert (image.shape, image.std() > 10) == ((120, 160, 3), True)


def test_a_reload_keeps_what_was_set_and_forgets_cameras_that_go(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        path = write_config(tmp_path, broker, cell_bundle)
        text = path.read_text()
        with running(path), Requester(broker) as requester:
            requester.wait_results()
            requester.do("set_threshold", camera="gate", confidence=0.9)
            path.write_text(text.replace("latency_ms = 5000", "latency_ms = 6000"))
            before = len(requester.messages)
            requester.do("reload")
            wait_until(lambda: len(requester.documents("/state", before)) > 0, "the state of the new pipeline")
            _wait_controls(requester, confidence=0.9)
            path.write_text(text.replace('url = "mqtt:', 'ulr = "mqtt:'))
            error = requester.ask({"command": "reload"})["error"]
            assert error["code"] == "failed"
            assert "mqtt: unknown key ulr; did you mean url?" in error["message"]
            assert str(tmp_path) not in error["message"]
            requester.wait_results(5)
            write_config(tmp_path, broker, cell_bundle, cameras={"yard": "pattern:320x240@20"})
            requester.do("reload")
            requester.wait_results(3, "yard")
            assert requester.ask({"command": "pause", "camera": "gate"})["error"]["code"] == "unknown_camera"
            path.write_text(text)
            requester.do("reload")
            requester.wait_results(3)
            _wait_controls(requester, confidence=0.25)


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_retained_command_is_refused_at_every_connection(cell_bundle: Path, tmp_path: Path, protocol: str) -> None:
    with Broker(tmp_path, persistence=True) as broker:
        with Requester(broker) as requester:
            requester.publish(f"{DEVICE}/cmd", _PAUSE, retain=True)
        path = write_config(tmp_path, broker, cell_bundle, protocol=protocol)
        with running(path) as device:
            for _ in range(2):
                with Requester(broker) as requester:
                    requester.wait_results(20)
                    assert requester.controls() in ({}, {"paused": False, "confidence": 0.25, "max_fps": 0.0})
                broker.restart()
            device.hear("(retained)")


def test_what_was_sent_while_the_device_was_away_is_not_done_later(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path, persistence=True) as broker:
        path = write_config(tmp_path, broker, cell_bundle)
        with running(path), Requester(broker) as requester:
            requester.wait_results()
            requester.do("set_rate", camera="gate", max_fps=10)
        with Requester(broker) as requester:
            requester.publish(f"{DEVICE}/cmd", _PAUSE)
        with running(path), Requester(broker) as requester:
            requester.wait_results(20)
            wait_until(lambda: bool(requester.controls()), "the state")
            # A new start is as configured: neither the missed command counts, nor what was set before.
            assert requester.controls() == {"paused": False, "confidence": 0.25, "max_fps": 0.0}
            assert requester.answers() == []


def test_what_was_sent_while_the_connection_was_broken_is_not_done_later(cell_bundle: Path, tmp_path: Path) -> None:
    """The broker keeps the session for as long as the last will waits."""
    with Broker(tmp_path) as broker, Proxy(broker.port) as proxy, Requester(broker) as requester:
        path = write_config(tmp_path, broker, cell_bundle)
        path.write_text(path.read_text().replace(f":{broker.port}", f":{proxy.port}"))
        with running(path):
            requester.wait_results()
            known, proxy.mode = proxy.connections, "reset"
            wait_until(lambda: proxy.connections > known, "another attempt")
            requester.publish(f"{DEVICE}/cmd", _PAUSE)
            proxy.mode = "pass"
            requester.wait_results(60)  # more than what waited
            assert requester.controls()["paused"] is False
            assert requester.answers() == []


def test_a_broker_that_lets_nobody_listen_is_said(cell_bundle: Path, tmp_path: Path) -> None:
    with DeafBroker() as broker, running(write_config(tmp_path, broker, cell_bundle)) as device:
        device.hear(f"warning: the broker does not let this device read {DEVICE}/cmd: Not authorized")


def test_with_mqtt_3_answers_come_on_one_topic_and_a_huge_message_is_refused(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Requester(broker, is_v5=False) as requester:
        path = write_config(tmp_path, broker, cell_bundle, protocol="3.1.1")
        with running(path):
            requester.wait_results()
            assert requester.ask(b"x" * 3_000_000)["error"]["code"] == "too_large"
            assert requester.ask({"command": "report_state"})["ok"]
            assert requester.do("snapshot", camera="gate")["picture"]["bytes"] > 0
            requester.do("reload")
            requester.do("set_rate", camera="gate", max_fps=5)
            _wait_controls(requester, max_fps=5.0)


def test_what_is_far_too_large_does_not_come_or_is_refused(requester: Requester) -> None:
    before = len(requester.messages)
    for _ in range(2 * WINDOW):  # Mosquitto 2.0.11 never gives back the in-flight places of what it keeps to itself
        requester.publish(f"{DEVICE}/cmd", b"x" * 100_000)  # the broker keeps it: the device has told it so
    state = requester.do("report_state", id="x")["state"]["cameras"]["gate"]
    assert (state["source"], state["controls"]["paused"]) == ("opened", False)
    assert len(requester.answers(before)) == 1


def test_nothing_is_listened_to_where_nothing_is_allowed(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path, config=["log_type all"]) as quiet:
        path = write_config(tmp_path, quiet, cell_bundle, allow=None)
        with running(path), Requester(quiet) as client:
            client.wait_results()
            client.publish(f"{DEVICE}/cmd", _PAUSE)
            assert client.wait_results(10)
            assert (client.answers(), client.controls()) == ([], {})
        assert "edge/default/pi 1 edge" not in quiet.log


# Home Assistant: found at once, again after its birth, gone when it shall be; its controls act.


@pytest.fixture
def home(requester: Requester) -> Home:
    found = Home(requester)
    found.wait_discovery()
    wait_until(lambda: bool(requester.documents("/seen/gate")), "what is seen")
    return found


def test_one_retained_message_tells_of_the_device_and_counts_follow_the_results(home: Home) -> None:
    assert set(home.wait_discovery()) == {"device", "origin", "availability", "components"}
    wait_until(lambda: home.is_available("fps-gate"), "the status, which comes in its own turn")
    for component, state in (("connected-gate", "ON"), ("switch-gate", "False"), ("occupancy-gate", "ON")):
        home.wait_state(component, state)
    wait_until(lambda: home.state("count_red-gate") not in (None, "0"), "something red")
    assert home.state("count_blue-gate") is not None


def test_it_is_said_again_when_home_assistant_is_there(home: Home) -> None:
    before, told = len(home.requester.messages), home.discoveries()[-1]
    home.birth("offline")
    home.birth()
    assert home.wait_discovery(before) == told
    assert len(home.discoveries(before)) == 1


def test_the_switch_and_the_numbers_act_on_results(home: Home) -> None:
    home.send("switch-gate", "off")
    home.wait_state("switch-gate", "True")
    wait_until(lambda: not home.is_available("count-gate"), "no count of a camera that is off")
    home.send("switch-gate", "on")
    wait_until(lambda: home.is_available("count-gate"), "the count again")
    home.send("confidence-gate", 0.99)
    home.wait_state("confidence-gate", "0.99")
    home.wait_state("occupancy-gate", "OFF")
    wait_until(lambda: home.state("events-gate") is not None, "an event of what is gone")
    event = json.loads(str(home.state("events-gate")))
    assert (event["event_type"] in home.entity("events-gate")["event_types"], event["label"]) == (True, "red")
    for component, value, shown in (
        ("confidence-gate", 0.25, "0.25"),
        ("rate-gate", 2, "2.0"),
        ("rate-gate", 0, "0.0"),
    ):
        home.send(component, value)
        home.wait_state(component, shown)
    home.wait_state("occupancy-gate", "ON")


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
