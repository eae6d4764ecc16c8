"""`edge-sdk run` as a user runs it: a process of its own, a real bundle, a real broker."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import msgspec
import paho.mqtt.client as mqtt
import pytest

from edge_sdk.cli.root import run
from tests.device.bundles import edit_manifest
from tests.system.broker import Broker, free_port, wait_until
from tests.system.bundles import cell_picture

pytestmark = pytest.mark.system


def _edge_sdk(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edge_sdk", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Ten seconds of cells at 20 frames a second."""
    path = tmp_path / "cells.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 20.0, (128, 128))
    for index in range(200):
        writer.write(cell_picture(index))
    writer.release()
    return path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path) as started:
        yield started


class Listener:
    """An independent subscriber to everything."""

    def __init__(self, broker: Broker) -> None:
        self.messages: list[tuple[str, dict[str, object], bool]] = []
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.on_connect = lambda client, *_: client.subscribe("#", qos=1)
        self._client.on_message = self._on_message
        self.subscribed = False
        self._client.on_subscribe = lambda *_: setattr(self, "subscribed", True)
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()

    def __enter__(self) -> Listener:
        wait_until(lambda: self.subscribed, "the subscription")
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        self.messages.append((message.topic, msgspec.json.decode(message.payload), message.retain))

    def results(self) -> list[dict[str, object]]:
        return [payload for topic, payload, _ in self.messages if "/result/" in topic]

    def statuses(self) -> list[object]:
        return [payload["status"] for topic, payload, _ in self.messages if topic.endswith("/status")]


def test_boxes_are_in_pixels_of_the_original_frame(cell_bundle: Path, cell_pictures: Path) -> None:
    done = _edge_sdk("run", cell_bundle, "--source", cell_pictures, "--device", "d", "--camera", "c")
    assert done.returncode == 0, done.stderr
    results = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert [r["seq"] for r in results] == [0, 1, 2, 3]
    for index, result in enumerate(results):
        # Pictures of 128 pixels, cells of 32: the model sees 64 and 16.
        expected = {
            ("red", (index * 32.0, 32.0, index * 32 + 32.0, 64.0)),
            ("blue", (96.0, index * 32.0, 128.0, index * 32 + 32.0)),
        }
        found = {(d["label"], tuple(d["box_xyxy"])) for d in result["detections"]}
        assert len(found) == 2 or index in (1, 3)
        for label, box in found:
            assert any(label == e[0] and all(abs(a - b) < 2 for a, b in zip(box, e[1], strict=True)) for e in expected)


def test_results_arrive_over_mqtt_and_the_device_says_goodbye(
    cell_bundle: Path, video: Path, broker: Broker, tmp_path: Path
) -> None:
    annotated = tmp_path / "annotated.mp4"
    with Listener(broker) as listener:
        done = _edge_sdk(
            *("run", cell_bundle, "--source", video, "--mqtt", broker.url, "--device", "d", "--camera", "gate"),
            *("--frames", 30, "--annotate", annotated, "--json"),
        )
        assert done.returncode == 0, done.stderr
        summary = msgspec.json.decode(done.stdout)
        assert summary["results"] == 30
        assert summary["ended_by"] == "frames"
        assert summary["publisher"]["sent"] >= 30
        wait_until(lambda: "offline" in listener.statuses(), "the farewell")
        assert len(listener.results()) == 30
        assert {t for t, _, _ in listener.messages} == {"edge/v1/default/d/status", "edge/v1/default/d/result/gate"}
        assert all(r["age_ms"] > 0 for r in listener.results())
    with Listener(broker) as late:
        wait_until(lambda: late.messages != [], "the retained status")
        [(_, status, retained)] = late.messages
        assert retained
        assert (status["status"], status["reason"]) == ("offline", "shutdown")
    drawn = cv2.VideoCapture(str(annotated))
    assert drawn.get(cv2.CAP_PROP_FPS) == 20
    # Frames that were dropped are filled up, so that the video keeps the source's pace.
    last = max(r["seq"] for r in listener.results())
    assert drawn.get(cv2.CAP_PROP_FRAME_COUNT) == last + 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_finish_the_frame_say_offline_and_exit_0(
    cell_bundle: Path, video: Path, broker: Broker, number: signal.Signals
) -> None:
    command = ["run", str(cell_bundle), "--source", str(video), "--mqtt", broker.url, "--device", "d", "--json"]
    with Listener(broker) as listener:
        process = subprocess.Popen(
            [sys.executable, "-m", "edge_sdk", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            wait_until(lambda: len(listener.results()) >= 5, "results")
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=20)
        finally:
            process.kill()
        assert process.returncode == 0, stderr
        summary = msgspec.json.decode(stdout)
        assert summary["ended_by"] == "signal"
        wait_until(lambda: "offline" in listener.statuses(), "the farewell")
        # Every result that the loop counted was delivered: nothing was cut off half-way.
        assert len(listener.results()) == summary["results"]


def test_a_video_plays_in_real_time_to_its_end(cell_bundle: Path, video: Path) -> None:
    done = _edge_sdk("run", cell_bundle, "--source", video, "--json", "--latency-ms", 1000)
    assert done.returncode == 0, done.stderr
    *results, summary = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert summary["ended_by"] == "end of source"
    assert results[-1]["seq"] == 199
    assert summary["results"] + summary["stale"] + summary["source"]["dropped"] == 200
    assert "source" in done.stderr


def test_duration_limits_the_run(cell_bundle: Path, video: Path) -> None:
    done = _edge_sdk("run", cell_bundle, "--source", video, "--duration", 1, "--json")
    assert msgspec.json.decode(done.stdout.splitlines()[-1])["ended_by"] == "duration"


def test_a_broker_that_is_not_there_stops_nothing(cell_bundle: Path, cell_pictures: Path) -> None:
    url = f"mqtt://127.0.0.1:{free_port()}"
    done = _edge_sdk("run", cell_bundle, "--source", cell_pictures, "--mqtt", url, "--json")
    assert done.returncode == 0, done.stderr
    summary = msgspec.json.decode(done.stdout)
    assert summary["results"] == 4
    assert summary["publisher"]["acknowledged"] == 0
    assert "Traceback" not in done.stderr


def test_a_wrong_password_is_said_in_one_line_without_the_password(
    cell_bundle: Path, video: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("wrong-secret\n")
    with Broker(tmp_path, users={"gate": "right"}) as broker:
        url = broker.url.replace("mqtt://", "mqtt://gate@")
        done = _edge_sdk(
            *("run", cell_bundle, "--source", video, "--duration", 2, "--mqtt", url, "--mqtt-password-file", secret),
        )
    assert done.returncode == 0
    assert "refused" in done.stderr
    assert "wrong-secret" not in done.stderr + done.stdout


def test_a_trusted_key_is_demanded_where_it_is_given(cell_bundle: Path, cell_pictures: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "signed.edge"
    shutil.copytree(cell_bundle, bundle)
    assert run(["keygen", str(tmp_path / "k")]) == 0
    command = ("run", bundle, "--source", cell_pictures, "--trust", tmp_path / "k.pub")
    refused = _edge_sdk(*command)
    assert refused.returncode == 7
    assert "not signed" in refused.stderr
    assert run(["sign", str(bundle), "--key", str(tmp_path / "k")]) == 0
    accepted = _edge_sdk(*command)
    assert accepted.returncode == 0
    assert "warning" not in accepted.stderr


def _flip_model(bundle: Path) -> None:
    path = bundle / "model.int8.ort"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "exit_code", "expected"),
    [
        (_flip_model, 7, "model.int8.ort: altered"),
        (lambda b: (b / "labels.txt").unlink(), 7, "labels.txt is missing"),
        (lambda b: (b / "more.txt").write_text("x"), 7, "more.txt is not named by the manifest"),
        (lambda b: edit_manifest(b, schema_version=9), 7, "schema_version is 9, expected 1; update edge-sdk"),
        (
            lambda b: edit_manifest(b, onnxruntime={"minimum": "0.1", "maximum": "0.9"}),
            6,
            "proved with ONNX Runtime 0.1 to 0.9, found",
        ),
        (lambda b: edit_manifest(b, machine="aarch64" if os.uname().machine == "x86_64" else "x86_64"), 6, "built for"),
    ],
)
def test_a_bundle_that_does_not_keep_its_promise_is_refused(
    cell_bundle: Path, cell_pictures: Path, tmp_path: Path, damage: object, exit_code: int, expected: str
) -> None:
    bundle = tmp_path / "damaged.edge"
    shutil.copytree(cell_bundle, bundle)
    damage(bundle)  # type: ignore[operator]
    done = _edge_sdk("run", bundle, "--source", cell_pictures, "--quiet")
    assert done.returncode == exit_code
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("source", "exit_code", "expected"),
    [
        ("nowhere.mp4", 1, "nowhere.mp4"),
        ("97", 1, "/dev/video97"),
        ("rtsp://admin:hunter2@127.0.0.1/stream", 2, "give --source-password-file"),
    ],
)
def test_sources_that_do_not_open(cell_bundle: Path, source: str, exit_code: int, expected: str) -> None:
    done = _edge_sdk("run", cell_bundle, "--source", source, "--quiet")
    assert done.returncode == exit_code
    assert expected in done.stderr
    assert "hunter2" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_name_that_cannot_be_a_topic_is_refused_at_once(cell_bundle: Path, cell_pictures: Path) -> None:
    broker = f"mqtt://127.0.0.1:{free_port()}"
    for option in ("--camera", "--device"):
        done = _edge_sdk("run", cell_bundle, "--source", cell_pictures, "--mqtt", broker, option, "a/b", "--quiet")
        assert done.returncode == 2
        assert "a/b" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_password_in_the_broker_url_is_refused(cell_bundle: Path, cell_pictures: Path) -> None:
    done = _edge_sdk("run", cell_bundle, "--source", cell_pictures, "--mqtt", "mqtt://gate:hunter2@127.0.0.1")
    assert done.returncode == 2
    assert "--mqtt-password-file" in done.stderr
    assert "hunter2" not in done.stderr


def test_bench_shows_every_stage_beside_a_bare_run(cell_bundle: Path, cell_pictures: Path) -> None:
    done = _edge_sdk("bench", cell_bundle, "--rounds", 5, "--json")
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout)
    assert list(report["stages"]) == ["decode image", "prepare", "run", "decode outputs", "encode", "publish"]
    assert set(report["bare"]) == {"1", "2"}
    assert report["ratio"] > 0
    assert report["image_wh"] == [1280, 720]
    table = _edge_sdk("bench", cell_bundle, "--rounds", 3, "--image", cell_pictures / "0.png")
    assert "x the best bare run" in table.stdout
    assert "frame 128x128" in table.stdout
    broken = _edge_sdk("bench", cell_bundle, "--image", cell_bundle / "labels.txt")
    assert broken.returncode == 2
    assert "not an image that can be read" in broken.stderr


def test_a_broker_that_goes_and_comes_back_gets_results_again(cell_bundle: Path, video: Path, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        command = ["run", str(cell_bundle), "--source", str(video), "--mqtt", broker.url, "--device", "d", "--json"]
        process = subprocess.Popen(
            [sys.executable, "-m", "edge_sdk", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            with Listener(broker) as listener:
                wait_until(lambda: len(listener.results()) >= 5, "results")
            broker.kill()
            broker.start()
            with Listener(broker) as listener:
                wait_until(lambda: len(listener.results()) >= 5, "results after the restart")
            process.send_signal(signal.SIGTERM)
            stdout, stderr = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 0, stderr
    assert msgspec.json.decode(stdout)["publisher"]["connects"] >= 2
    assert "Traceback" not in stderr
