"""A whole run that tells events and sends pictures, read by a subscriber of its own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest

from tests.support.broker import Broker, Received, Subscriber, free_port
from tests.support.bundles import cell_picture
from tests.support.program import edge_sdk
from tests.support.results import AsyncApi
from tests.support.subscribers import documents

pytestmark = pytest.mark.system

_API = AsyncApi(msgspec.json.decode((Path(__file__).parents[2] / "docs" / "asyncapi.json").read_bytes()))
_EMPTY, _FULL = range(4), range(4, 10)


def _scene(folder: Path) -> Path:
    """Sixteen pictures: cells are seen from the 5th to the 10th."""
    folder.mkdir()
    for index in range(16):
        picture = cell_picture(1) if index in _FULL else np.zeros((128, 128, 3), np.uint8)
        cv2.imwrite(str(folder / f"{index:02}.png"), picture)
    return folder


def _config(folder: Path, bundle: Path, tables: str) -> Path:
    path = folder / "config.toml"
    source = _scene(folder / "scene")
    path.write_text(
        f'version = 1\n[device]\nname = "pi"\n{tables}\n[[pipelines]]\nname = "gate"\nsource = "{source}"\n'
        f'bundle = "{bundle}"\n[[events]]\nlabels = ["red", "blue"]\ndisappear_s = 0\n'
    )
    return path


def _kind(message: Received) -> str:
    return message.topic.split("/")[4]


@pytest.mark.smoke
def test_what_appears_and_disappears_is_told_with_pictures(broker: Broker, cell_bundle: Path, tmp_path: Path) -> None:
    tables = (
        f'[mqtt]\nurl = "{broker.url}"\n[publish.events]\nexpiry_s = 1000\n'
        '[publish.snapshots]\non = "event"\nmax_per_s = 10\nwidth = 64\nexpiry_s = 500\nqos = 1\n'
    )
    with Subscriber(broker) as subscriber:
        done = edge_sdk("run", "--config", _config(tmp_path, cell_bundle, tables))
        assert done.returncode == 0, done.stderr
        subscriber.wait_for(lambda ms: b'"offline"' in ms[-1].payload, "the goodbye")
        messages = subscriber.messages()
    for message in messages:
        if _kind(message) != "snapshot":
            assert _API.complaints(_kind(message), msgspec.json.decode(message.payload)) == []
    assert {_kind(message) for message in messages} >= {"status", "state", "result", "event", "snapshot"}
    _look_at_events([m for m in messages if _kind(m) == "event"])
    _look_at_pictures([m for m in messages if _kind(m) == "snapshot"])


def _look_at_events(messages: list[Received]) -> None:
    events = documents(messages)
    found = sorted((e["frame_seq"], e["kind"], e["label"]) for e in events)
    assert found == [
        (5, "appeared", "blue"),
        (5, "appeared", "red"),
        (11, "disappeared", "blue"),
        (11, "disappeared", "red"),
    ]
    assert [e["seq"] - events[0]["seq"] for e in events] == [0, 1, 2, 3]
    [red] = [e for e in events if e["label"] == "red" and e["kind"] == "appeared"]
    assert red["box_xyxy"] == [32.0, 32.0, 64.0, 64.0]
    assert red["frame"] == {"width": 128, "height": 128}
    for message, event in zip(messages, events, strict=True):
        assert (message.topic, message.qos, message.retain) == ("edge/v1/default/pi/event/gate", 1, False)
        assert message.content_type == "application/json"
        assert message.user_properties == (("schema", "1"), ("stream", "event"), ("seq", str(event["seq"])))
        assert message.expiry_s in range(990, 1001)


def _look_at_pictures(messages: list[Received]) -> None:
    assert messages
    for message in messages:
        assert (message.topic, message.qos, message.retain) == ("edge/v1/default/pi/snapshot/gate", 1, False)
        assert message.content_type == "image/jpeg"
        assert message.expiry_s in range(490, 501)
        properties = dict(message.user_properties)
        assert (properties["schema"], properties["stream"]) == ("1", "snapshot")
        picture = cv2.imdecode(np.frombuffer(message.payload, np.uint8), cv2.IMREAD_COLOR)
        assert picture.shape == (64, 64, 3)
        assert bool(picture.max() > 100) is (int(properties["seq"]) in _FULL)
    assert dict(messages[0].user_properties)["seq"] == "5"


def test_as_lines_events_stand_between_results(cell_bundle: Path, tmp_path: Path) -> None:
    done = edge_sdk("run", "--config", _config(tmp_path, cell_bundle, ""))
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert [_API.complaints(line["stream"], line) for line in lines] == [[]] * len(lines)
    kinds = [(line["stream"], line.get("frame_seq", line["seq"])) for line in lines]
    assert kinds == [("result", seq) for seq in range(16)][:6] + [("event", 5)] * 2 + [
        ("result", seq) for seq in range(6, 12)
    ] + [("event", 11)] * 2 + [("result", seq) for seq in range(12, 16)]


@pytest.mark.parametrize(
    ("is_folder", "expected"),
    [
        (True, "did not reach the broker; Connection refused; 4 events wait on disk for the next start\n"),
        (False, "warning: 4 events are lost since the start: 4 in memory only\n"),
    ],
)
def test_what_becomes_of_events_without_a_broker_is_said_at_the_end(
    cell_bundle: Path, tmp_path: Path, is_folder: bool, expected: str
) -> None:
    outbox = tmp_path / "waiting"
    outbox.mkdir() if is_folder else outbox.touch()
    tables = f'[mqtt]\nurl = "mqtt://127.0.0.1:{free_port()}"\n[outbox]\nfolder = "{outbox}"\n'
    done = edge_sdk("run", "--config", _config(tmp_path, cell_bundle, tables))
    assert done.returncode == 1
    assert expected in done.stderr
    assert ("wait on disk" in done.stderr) is is_folder


def test_a_label_that_the_bundle_has_not_is_said(cell_bundle: Path, tmp_path: Path) -> None:
    config = _config(tmp_path, cell_bundle, "")
    config.write_text(config.read_text().replace('"blue"', '"bleu"'))
    done = edge_sdk("run", "--config", config)
    assert done.returncode == 0
    assert "warning: [[events]] labels: 'bleu' is no label of" in done.stderr
    assert "did you mean 'blue'?" in done.stderr
    assert [msgspec.json.decode(line)["label"] for line in done.stdout.splitlines() if '"event"' in line] == ["red"] * 2
    checked = edge_sdk("run", "--check", "--config", config)
    assert checked.returncode == 2
    assert "[[events]] labels: 'bleu' is no label of" in checked.stdout + checked.stderr


def test_a_camera_has_few_results_and_pictures_where_that_is_asked_for(
    broker: Broker, cell_bundle: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'version = 1\n[device]\nname = "pi"\n[mqtt]\nurl = "{broker.url}"\n[publish.results]\nmax_per_s = 2\nqos = 1\n'
        '[publish.snapshots]\non = "interval"\ninterval_s = 0.5\nquality = 30\n'
        f'[[pipelines]]\nname = "gate"\nsource = "pattern:320x240@20"\nbundle = "{cell_bundle}"\ntune = false\n'
    )
    with Subscriber(broker) as subscriber:
        done = edge_sdk("run", "--config", config, "--duration", "6", "--json")
        assert done.returncode == 0, done.stderr
        subscriber.wait_for(lambda ms: b'"offline"' in ms[-1].payload, "the goodbye")
        messages = subscriber.messages()
    assert "did not reach the broker" not in done.stderr
    results = documents([m for m in messages if _kind(m) == "result"])
    pictures = [m for m in messages if _kind(m) == "snapshot"]
    delivery = msgspec.json.decode(done.stdout)["delivery"]
    assert delivery["sent"] == delivery["put"] - delivery["limited"] == len(results)
    assert delivery["limited"] > 2 * len(results)
    numbers = [result["seq"] for result in results]
    assert numbers == sorted(set(numbers))
    assert len(pictures) >= 2
    assert {cv2.imdecode(np.frombuffer(m.payload, np.uint8), cv2.IMREAD_COLOR).shape for m in pictures} == {
        (240, 320, 3)
    }
    seen = [int(dict(m.user_properties)["seq"]) for m in pictures]
    assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(seen))
