"""Commands that are refused, each with a reason on the topic where its sender waits; and with MQTT 3.1.1."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_sdk.publishing.mqtt import WINDOW
from tests.support.broker import Broker, wait_until
from tests.support.requester import DEVICE, Requester, running, write_config

pytestmark = pytest.mark.system

_STATE = b'{"command":"report_state"}'


@pytest.fixture(scope="module")
def broker(cell_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("refused")
    with Broker(folder) as found:
        allow = ("pause", "set_threshold", "set_rate", "report_state")
        cameras = {"gate": "pattern:320x240@20"}
        path = write_config(folder / "config.toml", found, cell_bundle, allow=allow, cameras=cameras)
        with running(path), Requester(found) as requester:
            requester.wait_results()
            yield found


@pytest.fixture
def requester(broker: Broker) -> Iterator[Requester]:
    time.sleep(1)  # a few of the messages that may come a second
    with Requester(broker) as client:
        yield client


@pytest.mark.parametrize(
    ("payload", "code", "words"),
    [
        (b"", "malformed", "JSON object"),
        (b"{", "malformed", "JSON object"),
        (b"[1]", "malformed", "JSON object"),
        (b"\xff\xfe", "malformed", "JSON object"),
        (b"[" * 2000, "malformed", "JSON object"),
        (b'{"command":7}', "malformed", "JSON object"),
        (b'{"command":"pause"}', "malformed", "camera"),
        (b'{"command":"pause","camera":""}', "malformed", "camera"),
        (b'{"command":"pause","camera":"gate","path":"/etc/passwd"}', "malformed", "path"),
        (b'{"command":"set_threshold","camera":"gate","confidence":1.5}', "malformed", "confidence"),
        (b'{"command":"set_threshold","camera":"gate","confidence":NaN}', "malformed", "JSON"),
        (b'{"command":"set_threshold","camera":"gate","confidence":"1"}', "malformed", "confidence"),
        (b'{"command":"set_rate","camera":"gate","max_fps":-1}', "malformed", "max_fps"),
        (b'{"command":"pause","command":"report_state","camera":"gate"}', "malformed", ""),
        (b'{"command":"exec","code":"1"}', "unknown_command", "'exec', expected pause"),
        (b'{"command":"snapshot","camera":"gate"}', "not_allowed", '"set_rate", "snapshot", "report_state"]'),
        (b'{"command":"reload"}', "not_allowed", ', "reload"] in its configuration'),
        (b'{"command":"pause","camera":"yard"}', "unknown_camera", "expected gate"),
        (b'{"command":"pause","camera":"' + b"a" * 3000 + b'"}', "too_large", "2048 at most"),
    ],
)
def test_a_reason_is_given(requester: Requester, payload: bytes, code: str, words: str) -> None:
    answer = requester.ask(payload)
    assert (answer["ok"], answer["error"]["code"]) == (False, code)
    assert words in answer["error"]["message"]
    assert len(msgspec.json.encode(answer)) < 1000


def test_a_retained_command_is_refused_now_and_after_a_new_connection(requester: Requester) -> None:
    pause = b'{"command":"pause","camera":"gate"}'
    answer = requester.ask(pause, retain=True)
    assert answer["error"]["code"] == "retained"
    assert requester.wait_results(3)
    before = len(requester.messages)
    requester.publish(f"{DEVICE}/cmd", b"", retain=True)  # taken away as it should be: nothing to say
    assert requester.ask(_STATE)["ok"]
    assert len(requester.answers(before)) == 1


@pytest.mark.parametrize(
    "topic",
    [
        f"{DEVICE}/cmd",
        f"{DEVICE}/status",
        f"{DEVICE}/result/gate",
        f"{DEVICE}/resx",
        f"{DEVICE}/res/",
        f"{DEVICE}/res//x",
        "edge/v1/default/other/cmd",
        "homeassistant/device/x/config",
        f"{DEVICE}/res/{'a' * 300}",
    ],
)
def test_an_answer_goes_nowhere_else(requester: Requester, topic: str) -> None:
    before = len(requester.messages)
    requester.publish(f"{DEVICE}/cmd", b'{"command":"pause","camera":"gate"}', ResponseTopic=topic)
    wait_until(lambda: bool(requester.answers(before)), "the answer on res")
    [answer] = requester.answers(before)
    assert answer["error"]["code"] == "response_topic"
    came = [m for m in requester.messages[before:] if m.topic == topic and b'"response"' in m.payload]
    assert came == []
    assert requester.wait_results(2)  # and nothing was carried out


def _carried_out_or_told(answers: list[dict[str, Any]]) -> int:
    told = [a["error"]["message"] for a in answers if not a["ok"]]
    return len(answers) - len(told) + sum(int(line.split(" command")[0]) for line in told)


def test_too_many_are_passed_over_and_the_device_goes_on(requester: Requester) -> None:
    before = len(requester.messages)
    for _ in range(300):
        requester._client.publish(f"{DEVICE}/cmd", _STATE, 1)
    wait_until(lambda: any(not a["ok"] for a in requester.answers(before)), "a complaint")
    requester.wait_results(20)
    answers = requester.answers(before)
    refused = [a["error"]["code"] for a in answers if not a["ok"]]
    assert set(refused) == {"too_fast"}
    assert len(answers) < 100
    wait_until(lambda: _carried_out_or_told(requester.answers(before)) == 300, "all of them")
    wait_until(lambda: requester.ask(_STATE)["ok"], "a command after the flood")


def test_what_is_far_too_large_does_not_come_or_is_refused(broker: Broker, requester: Requester) -> None:
    before = len(requester.messages)
    for _ in range(2 * WINDOW):  # Mosquitto 2.0.11 never gives back the in-flight places of what it keeps to itself
        requester.publish(f"{DEVICE}/cmd", b"x" * 100_000)  # the broker keeps it: the device has told it so
    assert requester.ask(_STATE)["ok"]
    assert len(requester.answers(before)) == 1


def test_with_mqtt_3_answers_come_on_res(broker: Broker, requester: Requester) -> None:
    with Requester(broker, is_v5=False) as old:
        assert old.ask({"command": "report_state", "id": "7"})["id"] == "7"
        assert old.ask({"command": "nope", "id": "8"})["error"]["code"] == "unknown_command"


def test_nothing_is_listened_to_where_nothing_is_allowed(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path, config=["log_type all"]) as quiet:
        path = write_config(tmp_path / "config.toml", quiet, cell_bundle, allow=None)
        with running(path), Requester(quiet) as client:
            client.wait_results()
            client.publish(f"{DEVICE}/cmd", b'{"command":"pause","camera":"gate"}')
            assert client.wait_results(10)
            assert client.answers() == []
            assert client.controls() == {}
        assert "edge/default/pi 1 edge" not in quiet.log
