"""SIGTERM and SIGINT at many moments of a run with three cameras: exit code 0, a goodbye, nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import msgspec
import pytest

from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.device import (
    MOMENTS,
    STOP_S,
    Device,
    Moment,
    Scene,
    broker_is_frozen,
    loading,
    loading_a_little_later,
    running,
    taking_another_bundle,
    tuning,
)
from tests.support.streams import StreamServer, rtsp_server
from tests.support.subscribers import documents

pytestmark = pytest.mark.system

GUARD_S = 5.0
"""Against a machine that does much else; it is two seconds that are promised, and `benchmarks.ends` measures them."""
_UNANSWERED = ("broker_is_frozen", "broker_is_frozen_and_another_name_comes", "no_broker")


@pytest.fixture(scope="module")
def door() -> Iterator[StreamServer]:
    with rtsp_server() as server:
        yield server


@pytest.fixture
def scene(tmp_path: Path, cell_bundle: Path, door: StreamServer, broker: Broker) -> Iterator[Scene]:
    yield Scene(tmp_path, cell_bundle, door, broker)
    broker.thaw()
    door.go_on()


def _stop(device: Device, number: signal.Signals = signal.SIGTERM) -> None:
    began = time.monotonic()
    assert device.stop(number) == 0, device.said
    assert time.monotonic() - began < GUARD_S


def _check(scene: Scene, device: Device, listener: Subscriber, *, answers: bool = True) -> None:
    """What is left of a device that has ended."""
    assert not device.lines_with("Traceback")
    assert not [str(path) for path in (scene.folder / "scratch").rglob("*")], "temporary files"
    assert not [str(path) for path in (scene.folder / "state").rglob(".*")], "halves of records"
    if not device.lines_with("online"):
        return
    said = lambda: documents(listener.messages("/status"))  # noqa: E731
    wait_until(lambda: said()[-1]["status"] == "offline", "the goodbye")
    name = said()[-1]["device"]
    with Subscriber(scene.broker, f"edge/v1/default/{name}/status") as late:
        [message] = late.wait_for(lambda messages: len(messages) == 1, "the retained status")
    kept = documents([message])[0]
    assert (kept["status"], message.retain) == ("offline", True)
    assert kept["reason"] == "shutdown" or not answers


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_sigterm_at_any_moment(scene: Scene, moment: Moment) -> None:
    scene.defaults["tune"] = moment is tuning
    with Subscriber(scene.broker) as listener, moment(scene) as device:
        _stop(device)
        scene.broker.thaw()
        _check(scene, device, listener, answers=moment.__name__ not in _UNANSWERED)


@pytest.mark.parametrize("moment", [loading, loading_a_little_later, running, taking_another_bundle])
def test_sigint_at_many_moments(scene: Scene, moment: Moment) -> None:
    with Subscriber(scene.broker) as listener, moment(scene) as device:
        _stop(device, signal.SIGINT)
        _check(scene, device, listener)


@pytest.mark.parametrize("moment", [running, broker_is_frozen])
@pytest.mark.parametrize("pause_s", [0.0, 0.2, 0.6])
def test_a_second_sigterm_changes_nothing(scene: Scene, moment: Moment, pause_s: float) -> None:
    with Subscriber(scene.broker) as listener, moment(scene) as device:
        device.process.send_signal(signal.SIGTERM)
        time.sleep(pause_s)
        _stop(device)
        scene.broker.thaw()
        _check(scene, device, listener, answers=moment is running)


_KILLED_BY_AN_IMPORT = """
import os, signal, sys

class Killer:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Killer())
import edge_sdk.cli
"""


@pytest.mark.parametrize(
    ("arguments", "code"), [(["run"], 0), (["run", "--check"], -signal.SIGTERM), (["watch"], -signal.SIGTERM)]
)
def test_a_run_hears_sigterm_before_anything_large_is_loaded(arguments: list[str], code: int) -> None:
    """Other verbs have nothing to say goodbye to, and their exit code is an answer."""
    process = subprocess.run([sys.executable, "-c", _KILLED_BY_AN_IMPORT, *arguments], check=False)
    assert process.returncode == code


@pytest.mark.parametrize("pause_s", [0.0, 0.35])
def test_lines_on_standard_output_are_whole(scene: Scene, tmp_path: Path, pause_s: float) -> None:
    scene.mqtt = None
    with (tmp_path / "output").open("wb") as output:
        device = scene.start("--json", stdout=output.fileno())
    with device:
        device.hear("first result")
        time.sleep(pause_s)
        _stop(device)
    text = (tmp_path / "output").read_bytes()
    assert text.endswith(b"\n")
    lines = [msgspec.json.decode(line) for line in text.splitlines()]
    results, summaries = lines[:-3], lines[-3:]
    assert {line["stream"] for line in results} == {"result"}
    assert {line["camera"]: line["results"] for line in summaries} == {
        camera: sum(result["camera"] == camera for result in results) for camera in scene.cameras
    }


@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_a_video_that_is_being_written(cell_bundle: Path, tmp_path: Path, pause_s: float) -> None:
    """It is there and whole, or it is not there."""
    target = tmp_path / "out" / "seen.mp4"
    target.parent.mkdir()
    command = ["run", cell_bundle, "--source", "pattern:320x240@20", "--no-tune", "--annotate", target]
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_sdk", *map(str, command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "STATE_DIRECTORY": str(tmp_path / "state")},
    )
    assert process.stderr is not None
    said = [process.stderr.readline()]
    while pause_s and "first result" not in said[-1]:
        said.append(process.stderr.readline())
        assert said[-1], said
    time.sleep(pause_s)
    process.terminate()
    _, rest = process.communicate(timeout=STOP_S)
    assert process.returncode == 0, rest
    assert list(target.parent.iterdir()) in ([], [target])
    if pause_s:
        video = cv2.VideoCapture(str(target))
        assert video.read()[0]
        video.release()
