"""Commands around connections: while there is none, from before there was one, and where the broker allows none."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from edge_sdk.publishing import Incoming, MqttSettings
from edge_sdk.publishing.mqtt import MqttLink
from edge_sdk.publishing.wakeup import Wakeup
from tests.support.broker import WAIT_S, Broker, DeafBroker, require_program, wait_until
from tests.support.requester import DEVICE, Requester, running, write_config

pytestmark = pytest.mark.system

_PAUSE = b'{"command":"pause","camera":"gate"}'


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_retained_command_is_refused_at_every_connection(cell_bundle: Path, tmp_path: Path, protocol: str) -> None:
    with Broker(tmp_path, persistence=True) as broker:
        with Requester(broker) as requester:
            requester.publish(f"{DEVICE}/cmd", _PAUSE, retain=True)
        path = write_config(tmp_path / "config.toml", broker, cell_bundle, protocol=protocol)
        with running(path) as lines:
            for _ in range(2):
                with Requester(broker) as requester:
                    requester.wait_results(20)
                    assert requester.controls() in ({}, {"paused": False, "confidence": 0.25, "max_fps": 0.0})
                broker.restart()
            wait_until(lambda: any("(retained)" in line for line in lines), "the line that says so")


def test_what_was_sent_while_the_device_was_away_is_not_done_later(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path, persistence=True) as broker:
        path = write_config(tmp_path / "config.toml", broker, cell_bundle)
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


@pytest.mark.parametrize("politely", [True, False])
def test_the_session_of_the_connection_before_brings_no_commands(tmp_path: Path, politely: bool) -> None:
    """Of one that broke the broker keeps it for as long as the last will waits; of one that said goodbye not at all."""
    wakeup = Wakeup()
    with Broker(tmp_path) as broker, Requester(broker) as requester:
        settings = MqttSettings(host="127.0.0.1", port=broker.port, device="pi")
        first = _subscribed(settings, wakeup)
        requester.publish(settings.topics.command, b"heard")
        assert _next(first, wakeup).payload == b"heard"
        first.close(politely=politely)
        requester.publish(settings.topics.command, b"while it was away")
        second = _subscribed(settings, wakeup)
        requester.publish(settings.topics.command, b"heard again")
        assert _next(second, wakeup).payload == b"heard again"
        second.close(politely=True)
    wakeup.close()


def _subscribed(settings: MqttSettings, wakeup: Wakeup) -> MqttLink:
    link = MqttLink(settings, b"{}")
    link.open()
    _turn_until(link, wakeup, lambda: link.phase == "up")
    link.subscribe([settings.topics.command])
    _turn_until(link, wakeup, lambda: bool(link.refusals()))
    return link


def _next(link: MqttLink, wakeup: Wakeup) -> Incoming:
    received: list[Incoming] = []

    def has_come() -> bool:
        received.extend(link.received())
        return bool(received)

    _turn_until(link, wakeup, has_come)
    return received[0]


def _turn_until(link: MqttLink, wakeup: Wakeup, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        link.turn(0.1, wakeup)


def test_commands_work_again_after_an_outage_and_a_pause_lasts_through_it(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path, persistence=True) as broker:
        path = write_config(tmp_path / "config.toml", broker, cell_bundle)
        with running(path):
            with Requester(broker) as requester:
                requester.wait_results()
                requester.do("pause", camera="gate")
            broker.kill()
            broker.start()
            with Requester(broker) as requester:
                wait_until(lambda: requester.controls().get("paused") is True, "the state after the outage")
                # A step that was waiting for its frame when the pause came takes that one; its result waited too.
                assert len(requester.documents("/result/gate")) <= 1
                requester.do("resume", camera="gate")
                requester.wait_results(3)


def test_a_broker_that_was_frozen_gets_its_answers(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Requester(broker) as requester:
        path = write_config(tmp_path / "config.toml", broker, cell_bundle)
        with running(path):
            requester.wait_results()
            broker.freeze()
            topic = f"{DEVICE}/res/late"
            before = len(requester.messages)
            requester._client.publish(f"{DEVICE}/cmd", b'{"command":"report_state","id":"late"}', 1)
            broker.thaw()
            wait_until(lambda: any(a.get("id") == "late" for a in requester.answers(before)), f"the answer, {topic}")


def test_a_broker_that_lets_nobody_listen_is_said(cell_bundle: Path, tmp_path: Path) -> None:
    with DeafBroker() as broker:
        path = tmp_path / "config.toml"
        path.write_text(
            f'version = 1\n[device]\nname = "pi"\n[mqtt]\nurl = "mqtt://127.0.0.1:{broker.port}"\n[commands]\n'
            f'allow = ["pause"]\n[[pipelines]]\nname = "gate"\nsource = "pattern"\nbundle = "{cell_bundle}"\n'
            "latency_ms = 5000\ntune = false\n"
        )
        with running(path) as lines:
            expected = f"warning: the broker does not let this device read {DEVICE}/cmd: Not authorized"
            wait_until(lambda: any(expected in line for line in lines), "the line that says so")


def test_with_mqtt_3_all_of_it_works_and_a_huge_message_is_refused(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Requester(broker, is_v5=False) as requester:
        path = write_config(tmp_path / "config.toml", broker, cell_bundle, protocol="3.1.1")
        with running(path):
            requester.wait_results()
            assert requester.ask(b"x" * 3_000_000)["error"]["code"] == "too_large"
            assert requester.ask({"command": "report_state"})["ok"]
            requester.do("set_threshold", camera="gate", confidence=0.999)
            requester.wait_latest(lambda results: not any(r["detections"] for r in results), "no detections")
            requester.do("set_rate", camera="gate", max_fps=5)
            assert requester.do("snapshot", camera="gate")["picture"]["bytes"] > 0
            requester.do("reload")
            requester.do("pause", camera="gate")
            expected = {"paused": True, "confidence": 0.999, "max_fps": 5.0}
            wait_until(lambda: requester.controls() == expected, "what was set")
            requester.do("resume", camera="gate")
            requester.wait_results(2)


def test_a_camera_that_is_away_can_be_told_but_has_no_picture(cell_bundle: Path, tmp_path: Path) -> None:
    cameras = {"gate": "pattern:320x240@20", "yard": "rtsp://127.0.0.1:1/nobody"}
    with Broker(tmp_path) as broker, Requester(broker) as requester:
        path = write_config(tmp_path / "config.toml", broker, cell_bundle, cameras=cameras)
        with running(path):
            wait_until(lambda: bool(requester.controls("yard")), "the camera that is not there")
            requester.do("pause", camera="yard")
            requester.do("set_threshold", camera="yard", confidence=0.5)
            wait_until(lambda: requester.controls("yard")["confidence"] == 0.5, "the threshold")
            assert requester.controls("yard")["paused"]
            requester.do("resume", camera="yard")
            answer = requester.ask({"command": "snapshot", "camera": "yard"})
            assert answer["error"]["code"] == "failed"
            assert requester.do("snapshot", camera="gate")["picture"]["width"] == 320


def test_a_request_of_the_common_client_is_answered(cell_bundle: Path, tmp_path: Path) -> None:
    client = require_program("mosquitto_rr")
    with Broker(tmp_path) as broker, Requester(broker) as requester:
        path = write_config(tmp_path / "config.toml", broker, cell_bundle)
        with running(path):
            requester.wait_results()
            where = ("-V", "5", "-h", broker.host, "-p", str(broker.port))
            topics = ("-t", f"{DEVICE}/cmd", "-e", f"{DEVICE}/res/me")
            done = subprocess.run(
                [client, *where, *topics, "-m", '{"command": "report_state"}'], capture_output=True, timeout=WAIT_S
            )
            assert msgspec.json.decode(done.stdout)["ok"], done


def test_commands_in_the_middle_of_tuning_disturb_nothing(
    cell_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    with Broker(tmp_path) as broker, Requester(broker) as requester:
        cameras = {"gate": "pattern:320x240@20", "yard": "pattern:320x240@20"}
        path = write_config(tmp_path / "config.toml", broker, cell_bundle, cameras=cameras)
        path.write_text(path.read_text().replace("tune = false", "tune = true"))
        with running(path) as lines:
            requester.wait_results()
            requester.do("set_threshold", camera="gate", confidence=0.999)
            for _ in range(3):
                for command in ("pause", "resume"):
                    requester.do(command, camera="gate")
                    time.sleep(0.5)
            # Whichever of the candidates answers, each has the threshold that was set.
            assert not any(result["detections"] for result in requester.wait_results(60)[5:])
            assert any("tun" in line for line in lines)
