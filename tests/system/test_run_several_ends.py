"""SIGTERM and SIGINT at many moments of a run with three cameras: exit code 0, a goodbye, nothing half-written."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import msgspec
import pytest

from tests.device.configs import config_text, write_config
from tests.system.broker import Broker, Subscriber, free_port, wait_until
from tests.system.bundles import copy_bundle, replace_bundle
from tests.system.device import STOP_S, Device, own_folders
from tests.system.publishers import documents
from tests.system.streams import StreamServer, rtsp_server

pytestmark = pytest.mark.system

GUARD_S = 15.0
"""Against a machine that does much else; it is two seconds that are promised, and one that is measured."""


@pytest.fixture(scope="module")
def door() -> Iterator[StreamServer]:
    with rtsp_server() as server:
        yield server


class Scene:
    """A device with one camera that is there, one that is not and one that is drawn.

    Args:
        folder: for its files.
        bundle: is copied.
        door: the camera that is there.
        broker: where results go.
    """

    def __init__(self, folder: Path, bundle: Path, door: StreamServer, broker: Broker) -> None:
        self.folder, self.door, self.broker = folder, door, broker
        self.bundle = copy_bundle(bundle, folder / "cells.edge", 1)
        self.mqtt: dict[str, object] | None = {"url": broker.url}
        self.defaults: dict[str, object] = {"bundle": self.bundle, "tune": False}
        self.name = "pi"
        self.cameras: dict[str, dict[str, object]] = {
            "door": {"source": door.url()},
            "gone": {"source": f"rtsp://127.0.0.1:{free_port()}/x"},
            "bars": {"source": "pattern:320x240@20"},
        }

    def text(self) -> str:
        """Of the configuration."""
        return config_text(self.cameras, device={"name": self.name}, mqtt=self.mqtt, defaults=self.defaults)

    def start(self, *arguments: str, stdout: int = subprocess.PIPE) -> Device:
        """The device, as it begins."""
        config, environment = write_config(self.folder, self.text()), own_folders(self.folder)
        return Device(config, *arguments, environment=environment, stdout=stdout)


@pytest.fixture
def scene(tmp_path: Path, cell_bundle: Path, door: StreamServer, broker: Broker) -> Iterator[Scene]:
    yield Scene(tmp_path, cell_bundle, door, broker)
    broker.thaw()
    door.go_on()


Moment = Callable[[Scene, Device], None]


def loading(_scene: Scene, device: Device) -> None:
    device.hear("no trusted key")


def loading_a_little_later(scene: Scene, device: Device) -> None:
    loading(scene, device)
    time.sleep(0.4)


def running(_scene: Scene, device: Device) -> None:
    device.hear("first result")


def tuning(_scene: Scene, device: Device) -> None:
    device.hear("tuning for")


def taking_another_bundle(scene: Scene, device: Device) -> None:
    running(scene, device)
    replace_bundle(scene.bundle, 2)
    device.ask_to_reload(scene.text())
    time.sleep(0.3)


def taking_another_name(scene: Scene, device: Device) -> None:
    running(scene, device)
    scene.name = "pi-2"
    device.ask_to_reload(scene.text())
    time.sleep(0.2)


def broker_is_frozen(scene: Scene, device: Device) -> None:
    running(scene, device)
    scene.broker.freeze()
    time.sleep(0.2)


def broker_is_frozen_and_another_name_comes(scene: Scene, device: Device) -> None:
    broker_is_frozen(scene, device)
    scene.name = "pi-2"
    device.ask_to_reload(scene.text())
    time.sleep(0.4)


def camera_is_frozen(scene: Scene, device: Device) -> None:
    device.hear("live is open")
    scene.door.pause()
    time.sleep(0.5)


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", [loading, loading_a_little_later, running, taking_another_bundle])
def test_both_signals(scene: Scene, moment: Moment, number: signal.Signals) -> None:
    with Subscriber(scene.broker) as listener, scene.start() as device:
        moment(scene, device)
        _stop(device, number)
        _check(scene, device, listener)


@pytest.mark.parametrize("moment", [tuning, taking_another_name, camera_is_frozen])
def test_in_the_midst_of_something(scene: Scene, moment: Moment) -> None:
    scene.defaults["tune"] = moment is tuning
    with Subscriber(scene.broker) as listener, scene.start() as device:
        moment(scene, device)
        _stop(device)
        _check(scene, device, listener)


@pytest.mark.parametrize("moment", [broker_is_frozen, broker_is_frozen_and_another_name_comes])
def test_with_a_broker_that_does_not_answer(scene: Scene, moment: Moment) -> None:
    with Subscriber(scene.broker) as listener, scene.start() as device:
        moment(scene, device)
        _stop(device)
        scene.broker.thaw()
        _check(scene, device, listener, answers=False)


def test_without_a_broker_that_is_there(scene: Scene) -> None:
    scene.mqtt = {"url": f"mqtt://127.0.0.1:{free_port()}"}
    with scene.start() as device:
        running(scene, device)
        device.hear("not reachable")
        assert device.stop() == 0, device.said
        assert not device.lines_with("Traceback")


def test_while_a_source_never_answers(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        scene.cameras["gone"]["source"] = f"rtsp://127.0.0.1:{silent.getsockname()[1]}/x"
        with Subscriber(scene.broker) as listener, scene.start() as device:
            running(scene, device)
            caller, _ = silent.accept()
            with caller:
                assert device.stop() == 0, device.said
            _check(scene, device, listener)


@pytest.mark.parametrize("pause_s", [0.0, 0.35])
def test_lines_on_standard_output_are_whole(scene: Scene, tmp_path: Path, pause_s: float) -> None:
    scene.mqtt = None
    with (tmp_path / "output").open("wb") as output:
        device = scene.start("--json", stdout=output.fileno())
    with device:
        running(scene, device)
        time.sleep(pause_s)
        assert device.stop() == 0, device.said
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
