"""`edge-sdk run` as a user runs it: a process of its own, a real bundle, a real broker."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import CameraError
from edge_sdk.fleet.messages import line_words
from edge_sdk.sources.opening import open_source
from edge_sdk.tuning.candidates import Limits
from edge_sdk.tuning.tuning import Tuning, tune
from tests.support import bundles
from tests.support.broker import Broker, Received, Subscriber, wait_until
from tests.support.configs import Table, config_text, write_config
from tests.support.device import Device
from tests.support.logs import refusal
from tests.support.pictures import write_video
from tests.support.program import edge_sdk
from tests.support.results import AsyncApi
from tests.support.streams import http_server
from tests.support.subscribers import documents, running_in, statuses
from tests.support.subscribers import results as results_of

pytestmark = pytest.mark.system


def _found(bundle: Path, source: Path, *options: object) -> list[list[dict[str, Any]]]:
    ran = edge_sdk("run", bundle, "--source", source, "--no-tune", "-q", *options)
    assert ran.returncode == 0, ran.stderr
    return [msgspec.json.decode(line)["detections"] for line in ran.stdout.splitlines()]


@pytest.mark.smoke
def test_thresholds_of_a_run_take_the_place_of_the_bundle_s(cell_bundle: Path, cell_pictures: Path) -> None:
    results = _found(cell_bundle, cell_pictures, "--confidence", 0, "--iou", 1)
    assert [any(found["confidence"] < 0.2 for found in result) for result in results] == [True] * 4


def test_only_the_classes_that_are_named_count(cell_bundle: Path, cell_pictures: Path) -> None:
    results = _found(cell_bundle, cell_pictures, "--labels", "blue")
    assert {found["label"] for result in results for found in result} == {"blue"}
    for check in ((), ("--check",)):
        refused = edge_sdk("run", cell_bundle, "--source", cell_pictures, "--labels", "red,bleu", *check)
        assert refused.returncode == 2
        assert "labels: 'bleu' is no label of cells; did you mean 'blue'?" in refused.stderr


def test_a_second_bundle_looks_at_what_the_first_finds(cell_bundle: Path, cell_pictures: Path, tmp_path: Path) -> None:
    colours, drawn = bundles.write_real_bundle(tmp_path / "colours.edge", bundles.coloured()), tmp_path / "drawn"
    ran = edge_sdk(
        *("run", cell_bundle, "--then", colours, "--source", cell_pictures, "--no-tune", "--annotate", drawn, "--json")
    )
    assert ran.returncode == 0, ran.stderr
    *results, summary = map(msgspec.json.decode, ran.stdout.splitlines())
    assert len(results) == 4
    for result in results:
        assert result["model"]["then"]["name"] == "tiny"
        assert {found["label"]: found["then"]["classes"][0]["label"] for found in result["detections"]} == {
            "red": "red",
            "blue": "blue",
        }
    assert summary["then"] == {"run": 8, "skipped": 0, "failed": 0}
    names = sorted(path.name for path in drawn.iterdir())
    assert names == [result["file"] for result in results] == sorted(path.name for path in cell_pictures.iterdir())
    again = edge_sdk("run", cell_bundle, "--source", cell_pictures, "--no-tune", "--annotate", drawn)
    assert (again.returncode, "drawn: is not empty; choose a new or an empty folder" in again.stderr) == (2, True)
    words = line_words(ran.stdout.splitlines()[0].encode())
    assert re.match(rf"{names[0]}: (red|blue) \d+% \(\1 \d+%\), (red|blue) \d+% \(\2 \d+%\) · ", words), words


def test_results_arrive_and_the_offline_message(cell_bundle: Path, video: Path, broker: Broker, tmp_path: Path) -> None:
    annotated = tmp_path / "annotated.mp4"
    with Subscriber(broker) as listener:
        done = edge_sdk(
            *("run", cell_bundle, "--source", video, "--mqtt", broker.url, "--device", "d", "--camera", "gate"),
            *("--frames", 30, "--annotate", annotated, "--json", "--latency-ms", 5000),
        )
        assert done.returncode == 0, done.stderr
        summary = msgspec.json.decode(done.stdout)
        assert (summary["results"], summary["ended_by"]) == (30, "frames")
        assert 0 < summary["inference"]["p50_ms"] <= summary["serial"]["p50_ms"] <= summary["age"]["p50_ms"]
        assert summary["publisher"]["sent"] >= 30
        wait_until(lambda: statuses(listener)[-1][0] == "offline", "the offline message")
        results = results_of(listener)
        assert len(results) == 30
        topics = {m.topic.removeprefix("edge/v1/default/d/") for m in listener.messages()}
        assert topics - {"telemetry"} == {"status", "state", "result/gate"}  # telemetry comes now and then
        assert all(result["age_ms"] > 0 for result in results)
    with Subscriber(broker, "edge/v1/+/+/status") as late:
        late.wait_for(lambda messages: len(messages) == 1, "the retained status")
        assert statuses(late) == [("offline", "shutdown", True)]
    drawn = cv2.VideoCapture(str(annotated))
    assert drawn.get(cv2.CAP_PROP_FPS) == 20
    # Frames that were dropped are filled up, so that the video keeps the source's pace; a second of them at most.
    dropped = [after - before - 1 for before, after in itertools.pairwise(result["seq"] for result in results)]
    assert drawn.get(cv2.CAP_PROP_FRAME_COUNT) == 30 + sum(min(count, 20) for count in dropped)


@pytest.mark.smoke
def test_every_frame_of_a_video_runs_in_turn(cell_bundle: Path, video: Path, tmp_path: Path) -> None:
    bundle = bundles.copy_bundle(cell_bundle, tmp_path / "hasty.edge", 1)
    bundles.edit_manifest(bundle, latency_budget_ms=0.001)  # which no frame keeps
    done = edge_sdk("run", bundle, "--source", video, "--every-frame")
    assert done.returncode == 0, done.stderr
    assert [msgspec.json.decode(line)["seq"] for line in done.stdout.splitlines()] == list(range(200))


def test_outputs_that_are_no_numbers_and_accelerators_that_are_not_there_are_said_once(tmp_path: Path) -> None:
    wanted = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
    bundle = bundles.write_real_bundle(tmp_path / "a.edge", bundles.not_a_number(), providers=wanted)
    for index, level in enumerate([50, 255, 60, 255]):
        cv2.imwrite(str(tmp_path / f"{index}.png"), np.full((bundles.SIDE, bundles.SIDE, 3), level, np.uint8))
    done = edge_sdk("run", bundle, "--source", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    *results, summary = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert [result.get("not_finite", False) for result in results] == [False, True, False, True]
    assert [len(result["classes"]) for result in results] == [2, 0, 2, 0]
    assert (summary["results"], summary["not_finite"]) == (4, 2)
    assert done.stderr.count("are NaN or infinite") == 1
    [line] = [line for line in done.stderr.splitlines() if "was asked for and is not used" in line]
    assert all(f"{name} was asked for and is not used: " in line for name in wanted[:2])


# Events, pictures, and how often they come.

_API = AsyncApi(msgspec.json.decode((Path(__file__).parents[2] / "docs" / "asyncapi.json").read_bytes()))
_FULL = range(4, 10)


def _config(folder: Path, bundle: Path, **tables: Table) -> Path:
    """Sixteen pictures: cells are seen from the 5th to the 10th."""
    (scene := folder / "scene").mkdir()
    for index in range(16):
        picture = bundles.cell_picture(1) if index in _FULL else np.zeros((128, 128, 3), np.uint8)
        cv2.imwrite(str(scene / f"{index:02}.png"), picture)
    text = config_text({"gate": {"source": scene, "bundle": bundle}}, **tables)
    return write_config(folder, f'{text}\n[[events]]\nlabels = ["red", "blue"]\ndisappear_s = 0\n')


def _kind(message: Received) -> str:
    return message.topic.split("/")[4]


@pytest.mark.smoke
def test_what_appears_and_disappears_is_told_with_pictures(broker: Broker, cell_bundle: Path, tmp_path: Path) -> None:
    tables: dict[str, Table] = {
        "mqtt": {"url": broker.url},
        "publish.events": {"expiry_s": 1000},
        "publish.snapshots": {"on": "event", "max_per_s": 10, "width": 64, "expiry_s": 500, "qos": 1},
    }
    with Subscriber(broker) as subscriber:
        done = edge_sdk("run", "--config", _config(tmp_path, cell_bundle, **tables))
        assert done.returncode == 0, done.stderr
        subscriber.wait_for(lambda ms: b'"offline"' in ms[-1].payload, "the offline message")
        messages = subscriber.messages()
    for message in messages:
        if _kind(message) != "snapshot":
            assert _API.complaints(_kind(message), msgspec.json.decode(message.payload)) == []
    assert {_kind(message) for message in messages} >= {"status", "state", "result", "event", "snapshot"}
    _look_at_events([m for m in messages if _kind(m) == "event"])
    _look_at_pictures([m for m in messages if _kind(m) == "snapshot"])


def _look_at_events(messages: list[Received]) -> None:
    events = documents(messages)
    expected = [(seq, kind, label) for seq, kind in ((5, "appeared"), (11, "disappeared")) for label in ("blue", "red")]
    assert sorted((e["frame_seq"], e["kind"], e["label"]) for e in events) == expected
    assert [e["seq"] - events[0]["seq"] for e in events] == [0, 1, 2, 3]
    [red] = [e for e in events if e["label"] == "red" and e["kind"] == "appeared"]
    assert (red["box_xyxy"], red["frame"]) == ([32.0, 32.0, 64.0, 64.0], {"width": 128, "height": 128})
    for message, event in zip(messages, events, strict=True):
        assert (message.topic, message.qos, message.retain) == ("edge/v1/default/pi/event/gate", 1, False)
        assert message.content_type == "application/json"
        assert message.user_properties == (("schema", "1"), ("stream", "event"), ("seq", str(event["seq"])))
        assert message.expiry_s in range(800, 1001)


def _look_at_pictures(messages: list[Received]) -> None:
    assert messages
    for message in messages:
        assert (message.topic, message.qos, message.retain) == ("edge/v1/default/pi/snapshot/gate", 1, False)
        assert (message.content_type, message.expiry_s in range(300, 501)) == ("image/jpeg", True)
        properties = dict(message.user_properties)
        assert (properties["schema"], properties["stream"]) == ("1", "snapshot")
        picture = cv2.imdecode(np.frombuffer(message.payload, np.uint8), cv2.IMREAD_COLOR)
        assert (picture.shape, bool(picture.max() > 100)) == ((64, 64, 3), int(properties["seq"]) in _FULL)
    assert dict(messages[0].user_properties)["seq"] == "5"


# A run tunes itself while results go out, and takes another model or fewer threads where the machine changes.


_FPS = 50
_WAIT_S = 300.0


@pytest.fixture(autouse=True)
def _knows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board that knows nothing of any bundle yet."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))


def test_the_first_run_tunes_itself_and_the_next_has_it_at_once(tmp_path: Path, broker: Broker) -> None:
    video = write_video(tmp_path / "v.avi", range(60 * _FPS), fps=_FPS, size_wh=(64, 48))
    bundle = bundles.write_variants(tmp_path / "a.edge")
    gate = {"source": video, "bundle": bundle, "latency_ms": 1000, "repeat": True}
    config = write_config(tmp_path, config_text({"gate": gate}, mqtt={"url": broker.url}))
    with Subscriber(broker) as listener, Device(config) as device:
        wait_until(lambda: bool(device.lines_with("tuned in ")) or device.is_over, "the end of tuning", _WAIT_S)
        line = device.hear("edge-sdk: tuned in ")
        wait_until(lambda: "tuning" not in running_in(listener, "gate")[-1], "a state that says so")
        assert device.stop() == 0
        listener.wait_for(lambda _: statuses(listener)[-1][0] == "offline", "the offline message")
        first, *_, last = running_in(listener, "gate")
        sequence = [result["seq"] for result in documents(listener.messages("/result/gate"))]
        already = len(running_in(listener, "gate"))
        with Device(config) as again:
            wait_until(lambda: len(running_in(listener, "gate")) > already, "what the next one runs")
            remembered = running_in(listener, "gate")[already]
            assert again.stop() == 0
    begun = f"tuning for {_FPS} frames a second: what runs best is measured while results go out"
    assert (len(device.lines_with(begun)), len(device.lines_with("tuned in "))) == (1, 1)
    assert re.search(" s: fp32, .* instead of int8, 1 thread .*the highest quality of those that keep 1000 ms", line)
    assert (first["variant"], first["tuning"]) == ("int8", True)
    assert (last["variant"], last["reason"]) == ("fp32", "chosen by measurement")
    assert len(sequence) > _FPS
    assert sequence == sorted(set(sequence))
    assert (remembered["variant"], remembered["reason"]) == ("fp32", "remembered from a measurement")
    chosen = line.partition(" s: ")[2].partition(" (p99")[0]
    assert again.lines_with("edge-sdk: tuned at 20", f"Z: {chosen} (p99 ")
    was_busy = bool(device.lines_with("the next start tunes again"))
    assert was_busy or not again.lines_with("tuning for")


def test_tuning_on_a_camera_that_falls_silent_ends_with_one_line(tmp_path: Path) -> None:
    limits = Limits(1000)
    bundle = Bundle.open(bundles.write_variants(tmp_path / "a.edge"))
    tuning = Tuning(bundle, limits, camera="c", variant=None, open_stages=bundles.open_candidate)
    with http_server() as server, contextlib.closing(open_source(server.url())) as source:
        server.pause()
        said = refusal(CameraError, tune, tuning, limits, source, source.fps, 2000, silence_s=1)
    assert said.startswith("the source delivered no frame for 1 s, so there is nothing to measure; ")
    assert not (tmp_path / "state" / "tuning").exists()


# A machine that becomes slow while a pipeline runs, and fast again.


@contextlib.contextmanager
def _stopped_mostly(pid: int) -> Iterator[None]:
    """The program gets one part in sixteen of the time, however busy or fast this machine is."""
    loop = f"while kill -STOP {pid}; do sleep 0.3; kill -CONT {pid}; sleep 0.02; done"
    with subprocess.Popen(["sh", "-c", loop]) as stopping:
        try:
            yield
        finally:
            stopping.kill()
            os.kill(pid, signal.SIGCONT)


@pytest.mark.long
def test_a_pipeline_steps_down_under_a_load_and_up_again(tmp_path: Path, broker: Broker) -> None:
    bundle = bundles.write_graded(tmp_path / "graded.edge", side=128, width=32, latency_ms=200)
    video = write_video(tmp_path / "slow.avi", range(3000), fps=10, size_wh=(32, 32))
    gate = {"source": video, "bundle": bundle, "tune": False}
    config = write_config(tmp_path, config_text({"gate": gate}, mqtt={"url": broker.url}))
    with Subscriber(broker) as listener:

        def steps() -> list[dict[str, Any]]:
            return running_in(listener, "gate")

        def upwards() -> list[dict[str, Any]]:
            return [after for before, after in pairwise(steps()) if after["level"] < before["level"]]

        def results_of(variant: str) -> int:
            results = documents(listener.messages("/result/gate"))
            return sum(result["model"]["variant"] == variant for result in results)

        with Device(config) as device:
            wait_until(lambda: results_of(bundles.LARGE) > 0 and bool(steps()), "results and the state of the start")
            assert steps()[0] == {"variant": bundles.LARGE, "every": 1, "level": 0, "levels": 8, "reason": "start"}
            with _stopped_mostly(device.process.pid):
                wait_until(lambda: results_of(bundles.SMALL) > 0, "the smaller model", _WAIT_S)
            # On a busy machine it may be many levels down by now, and each takes ten seconds at least.
            wait_until(lambda: bool(upwards()), "a step up", _WAIT_S)
            assert device.stop() == 0
        # One level at a time, and each with its numbers.
        assert all(abs(after["level"] - before["level"]) == 1 for before, after in pairwise(steps()))
        assert "missed 200 ms" in steps()[1]["reason"]
        assert "ms expected of 200" in upwards()[0]["reason"]
    assert device.lines_with(f"from {bundles.LARGE} to {bundles.SMALL}: {steps()[1]['reason']}")
    assert not device.lines_with("Traceback")
