"""`edge-sdk run` as a user runs it: a process of its own, a real bundle, a real broker."""

from __future__ import annotations

import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import msgspec
import pytest

from tests.support.broker import Broker, Subscriber, free_port, wait_until
from tests.support.bundles import copy_bundle, edit_manifest
from tests.support.program import PATIENCE_S, edge_sdk, start_edge_sdk

pytestmark = pytest.mark.system

_PATIENT = ("--latency-ms", 5000)  # for a machine that does other things too


def _results(subscriber: Subscriber) -> list[dict[str, Any]]:
    return [msgspec.json.decode(m.payload) for m in subscriber.messages() if "/result/" in m.topic]


def _statuses(subscriber: Subscriber) -> list[str]:
    return [msgspec.json.decode(m.payload)["status"] for m in subscriber.messages("/status")]


def test_boxes_are_in_pixels_of_the_original_frame(cell_bundle: Path, cell_pictures: Path) -> None:
    done = edge_sdk("run", cell_bundle, "--source", cell_pictures, "--device", "d", "--camera", "c")
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
        assert {label for label, _ in found} == {"red", "blue"}
        assert len(found) == 2
        for label, box in found:
            assert any(label == e[0] and all(abs(a - b) < 2 for a, b in zip(box, e[1], strict=True)) for e in expected)


@pytest.mark.smoke
def test_results_arrive_over_mqtt_and_the_device_says_goodbye(
    cell_bundle: Path, video: Path, broker: Broker, tmp_path: Path
) -> None:
    annotated = tmp_path / "annotated.mp4"
    with Subscriber(broker) as listener:
        done = edge_sdk(
            *("run", cell_bundle, "--source", video, "--mqtt", broker.url, "--device", "d", "--camera", "gate"),
            *("--frames", 30, "--annotate", annotated, "--json", *_PATIENT),
        )
        assert done.returncode == 0, done.stderr
        summary = msgspec.json.decode(done.stdout)
        assert summary["results"] == 30
        assert summary["ended_by"] == "frames"
        assert 0 < summary["serial"]["p50_ms"] <= summary["age"]["p50_ms"]
        assert summary["inference"]["p50_ms"] <= summary["serial"]["p50_ms"]
        assert summary["publisher"]["sent"] >= 30
        wait_until(lambda: "offline" in _statuses(listener), "the farewell")
        assert len(_results(listener)) == 30
        topics = {m.topic.removeprefix("edge/v1/default/d/") for m in listener.messages()}
        assert topics - {"telemetry"} == {"status", "state", "result/gate"}  # telemetry comes now and then
        assert all(r["age_ms"] > 0 for r in _results(listener))
    with Subscriber(broker, "edge/v1/+/+/status") as late:
        [message] = late.wait_for(lambda messages: len(messages) == 1, "the retained status")
        assert message.retain
        status = msgspec.json.decode(message.payload)
        assert (status["status"], status["reason"]) == ("offline", "shutdown")
    drawn = cv2.VideoCapture(str(annotated))
    assert drawn.get(cv2.CAP_PROP_FPS) == 20
    # Frames that were dropped are filled up, so that the video keeps the source's pace; a second of them at most.
    dropped = [after - before - 1 for before, after in pairwise(r["seq"] for r in _results(listener))]
    assert drawn.get(cv2.CAP_PROP_FRAME_COUNT) == 30 + sum(min(count, 20) for count in dropped)


@pytest.mark.smoke
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_finish_the_frame_say_offline_and_exit_0(
    cell_bundle: Path, long_video: Path, broker: Broker, number: signal.Signals
) -> None:
    command = ("run", cell_bundle, "--source", long_video, "--mqtt", broker.url, "--device", "d", "--json", *_PATIENT)
    with Subscriber(broker) as listener:
        process = start_edge_sdk(*command)
        try:
            wait_until(lambda: len(_results(listener)) >= 5, "results")
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
        assert process.returncode == 0, stderr
        summary = msgspec.json.decode(stdout)
        assert summary["ended_by"] == "signal"
        wait_until(lambda: "offline" in _statuses(listener), "the farewell")
        # Every result that the loop counted was delivered: nothing was cut off half-way.
        assert len(_results(listener)) == summary["results"]


def test_a_video_plays_in_real_time_to_its_end(cell_bundle: Path, video: Path) -> None:
    done = edge_sdk("run", cell_bundle, "--source", video, "--json", "--latency-ms", 1000)
    assert done.returncode == 0, done.stderr
    *results, summary = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert summary["ended_by"] == "end of source"
    # A machine that stands still for a second makes frames too old; none is lost without being counted.
    left_out = summary["stale"] + summary["skipped"] + summary["hung"] + summary["source"]["dropped"]
    assert summary["results"] + left_out + summary["source"]["unreadable"] == 200, done.stdout + done.stderr
    assert results[-1]["seq"] == 199 or left_out, done.stdout + done.stderr
    assert "source" in done.stderr


@pytest.mark.smoke
def test_every_frame_of_a_video_runs_in_turn(cell_bundle: Path, video: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(cell_bundle, tmp_path / "hasty.edge", 1)
    edit_manifest(bundle, latency_budget_ms=0.001)  # which no frame keeps
    done = edge_sdk("run", bundle, "--source", video, "--every-frame")
    assert done.returncode == 0, done.stderr
    seqs = [msgspec.json.decode(line)["seq"] for line in done.stdout.splitlines()]
    assert len(seqs) > 10
    assert seqs == list(range(len(seqs)))


def test_duration_limits_the_run(cell_bundle: Path, video: Path) -> None:
    done = edge_sdk("run", cell_bundle, "--source", video, "--duration", 1, "--json")
    assert msgspec.json.decode(done.stdout.splitlines()[-1])["ended_by"] == "duration"


def test_a_broker_that_is_not_there_stops_nothing(cell_bundle: Path, cell_pictures: Path) -> None:
    url = f"mqtt://127.0.0.1:{free_port()}"
    done = edge_sdk("run", cell_bundle, "--source", cell_pictures, "--mqtt", url, "--json")
    assert done.returncode == 1
    assert "4 of 4 results did not reach the broker" in done.stderr
    summary = msgspec.json.decode(done.stdout)
    assert summary["results"] == 4
    assert summary["publisher"]["acknowledged"] == 0
    assert "Traceback" not in done.stderr


def test_bench_shows_every_stage_beside_a_bare_run(cell_bundle: Path, cell_pictures: Path) -> None:
    done = edge_sdk("bench", cell_bundle, "--rounds", 5, "--json")
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout)
    assert list(report["stages"]) == ["decode image", "prepare", "run", "decode outputs", "encode", "publish"]
    assert set(report["bare"]) == {"1", "2"}
    assert report["ratio"] > 0
    assert report["image_wh"] == [1280, 720]
    table = edge_sdk("bench", cell_bundle, "--rounds", 3, "--image", cell_pictures / "0.png")
    assert "x the best bare run" in table.stdout
    assert "frame 128x128" in table.stdout
    broken = edge_sdk("bench", cell_bundle, "--image", cell_bundle / "labels.txt")
    assert broken.returncode == 2
    assert "not an image that can be read" in broken.stderr


@pytest.mark.smoke
def test_a_broker_that_goes_and_comes_back_gets_results_again(
    cell_bundle: Path, long_video: Path, tmp_path: Path
) -> None:
    with Broker(tmp_path) as broker:
        run = ("run", cell_bundle, "--source", long_video, *_PATIENT)
        command = (*run, "--mqtt", broker.url, "--device", "d", "--json")
        process = start_edge_sdk(*command)
        try:
            with Subscriber(broker) as listener:
                wait_until(lambda: len(_results(listener)) >= 5, "results")
            broker.kill()
            broker.start()
            with Subscriber(broker) as listener:
                wait_until(lambda: len(_results(listener)) >= 5, "results after the restart")
            process.send_signal(signal.SIGTERM)
            stdout, stderr = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0, stderr
    assert msgspec.json.decode(stdout)["publisher"]["connects"] >= 2
    assert "Traceback" not in stderr
