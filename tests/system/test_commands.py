"""Commands over a real broker: each does what it says on the next frames, and is answered."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import jsonschema
import msgspec
import numpy as np
import pytest

from edge_sdk.commands import response_schema
from tests.support.broker import Broker, wait_until
from tests.support.requester import DEVICE, Requester, running, write_config

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def config(cell_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Broker]]:
    folder = tmp_path_factory.mktemp("commands")
    with Broker(folder) as broker:
        path = write_config(folder / "config.toml", broker, cell_bundle)
        with running(path), Requester(broker) as requester:
            requester.wait_results()
            yield path, broker


@pytest.fixture
def requester(config: tuple[Path, Broker]) -> Iterator[Requester]:
    with Requester(config[1]) as client:
        yield client


def _drain(requester: Requester, **fields: Any) -> None:
    wait_until(lambda: fields.items() <= requester.controls().items(), f"{fields} in the state")


def test_a_camera_pauses_and_goes_on_where_it_is(requester: Requester) -> None:
    requester.do("pause", camera="gate")
    _drain(requester, paused=True)
    time.sleep(1)  # what was under way
    last = requester.documents("/result/gate")[-1]["seq"] if requester.documents("/result/gate") else 0
    before = len(requester.messages)
    answer = requester.ask({"command": "snapshot", "camera": "gate"})
    assert (answer["error"]["code"], "picture" in answer) == ("not_possible", False)
    wait_until(lambda: bool(requester.documents("/telemetry", before)), "telemetry, ten seconds apart")
    assert requester.documents("/result/gate", before) == []
    assert requester.documents("/telemetry", before)[-1]["cameras"]["gate"]["fps"] < 20
    requester.do("resume", camera="gate")
    first = requester.wait_results()[0]
    # The frames of ten seconds passed unseen: what runs is what the camera sees now.
    assert first["seq"] > last + 20
    assert first["age_ms"] < 1000
    _drain(requester, paused=False)


def test_the_threshold_acts_on_the_next_frames_both_ways(requester: Requester) -> None:
    assert any(result["detections"] for result in requester.wait_results(10))
    requester.do("set_threshold", camera="gate", confidence=0.999)
    _drain(requester, confidence=0.999)
    requester.wait_latest(lambda results: not any(r["detections"] for r in results), "no detections")
    requester.do("set_threshold", camera="gate", confidence=0.01)
    _drain(requester, confidence=0.01)
    # Below what the bundle has: weaker ones are found, and not only the stronger left out.
    requester.wait_latest(lambda results: any(d["confidence"] < 0.25 for r in results for d in r["detections"]), "weak")
    requester.do("set_threshold", camera="gate", confidence=0.25)
    _drain(requester, confidence=0.25)


def test_the_rate_is_kept_and_given_up(requester: Requester) -> None:
    requester.do("set_rate", camera="gate", max_fps=4)
    _drain(requester, max_fps=4.0)
    # Of 20 a second every fifth; a busy machine leaves more out, and makes up for some.
    requester.wait_latest(lambda results: np.min(np.diff([r["seq"] for r in results])) >= 4, "every fifth frame")
    requester.do("set_rate", camera="gate", max_fps=0)
    _drain(requester, max_fps=0.0)
    requester.wait_latest(lambda results: np.min(np.diff([r["seq"] for r in results])) == 1, "frames in a row")


def test_a_snapshot_is_the_picture_of_a_frame(requester: Requester) -> None:
    answer = requester.do("snapshot", camera="gate", width=160, id="mine")
    picture = answer["picture"]
    wait_until(lambda: any(m.topic == picture["topic"] for m in requester.messages), "the picture")
    [message] = [m for m in requester.messages if m.topic == picture["topic"]]
    assert (picture["topic"], answer["id"], message.retain) == (f"{DEVICE}/snapshot/gate", "mine", False)
    assert (message.properties.ContentType, message.properties.PayloadFormatIndicator) == ("image/jpeg", 0)
    image = cv2.imdecode(np.frombuffer(message.payload, np.uint8), cv2.IMREAD_COLOR)
    assert image.shape == (120, 160, 3)
    assert (picture["width"], picture["height"], picture["bytes"]) == (160, 120, len(message.payload))
    assert image.std() > 10


def test_the_state_is_reported(requester: Requester) -> None:
    answer = requester.do("report_state")
    assert answer["state"]["cameras"]["gate"]["source"] == "opened"
    assert answer["state"]["cameras"]["gate"]["controls"]["paused"] is False


def test_a_reload_keeps_what_was_set_and_forgets_cameras_that_go(
    config: tuple[Path, Broker], requester: Requester, cell_bundle: Path
) -> None:
    path, broker = config
    requester.do("set_threshold", camera="gate", confidence=0.9)
    text = path.read_text()
    path.write_text(text.replace("latency_ms = 5000", "latency_ms = 6000"))
    before = len(requester.messages)
    requester.do("reload")
    wait_until(lambda: len(requester.documents("/state", before)) > 0, "the state of the new pipeline")
    _drain(requester, confidence=0.9)
    path.write_text(text.replace('url = "mqtt:', 'ulr = "mqtt:'))
    answer = requester.ask({"command": "reload"})
    assert answer["error"]["code"] == "failed"
    assert "unknown key mqtt.ulr; did you mean url?" in answer["error"]["message"]
    assert str(path.parent) not in answer["error"]["message"]
    requester.wait_results(5)
    write_config(path, broker, cell_bundle, cameras={"yard": "pattern:320x240@20"})
    requester.do("reload")
    requester.wait_results(3, "yard")
    assert requester.ask({"command": "pause", "camera": "gate"})["error"]["code"] == "unknown_camera"
    path.write_text(text)
    requester.do("reload")
    requester.wait_results(3)
    _drain(requester, confidence=0.25)


def test_answers_keep_to_their_schema(requester: Requester) -> None:
    requester.do("report_state", id="x")
    requester.do("snapshot", camera="gate")
    requester.ask(b"{")
    validator = jsonschema.Draft202012Validator(msgspec.json.decode(response_schema()))
    answers = requester.answers()
    assert len(answers) == 3
    assert [error.message for answer in answers for error in validator.iter_errors(answer)] == []
    assert all(re.fullmatch("[0-9a-f-]{36}", answer["run_id"]) for answer in answers)
