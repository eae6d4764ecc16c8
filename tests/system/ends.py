"""Moments at which a run is told to end, on a device with three cameras; tests and a benchmark share them."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.device.configs import config_text, write_config
from tests.system.broker import Broker, free_port, wait_until
from tests.system.bundles import copy_bundle, replace_bundle
from tests.system.device import Device, own_folders
from tests.system.streams import StreamServer


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


Moment = Callable[[Scene], AbstractContextManager[Device]]
"""A device that has just come there."""


@contextmanager
def heard(scene: Scene) -> Iterator[Device]:
    """The first moment at which Python hears the signal; before, the kernel ends the process by it."""
    with scene.start() as device:
        status, bit = Path(f"/proc/{device.process.pid}/status"), 1 << signal.SIGTERM - 1
        wait_until(lambda: bool(_caught(status) & bit), "somebody to hear SIGTERM")
        yield device


@contextmanager
def loading(scene: Scene) -> Iterator[Device]:
    """The model begins to load."""
    with scene.start() as device:
        device.hear("no trusted key")
        yield device


@contextmanager
def loading_a_little_later(scene: Scene) -> Iterator[Device]:
    """It does, and cameras are opened."""
    with loading(scene) as device:
        time.sleep(0.4)
        yield device


@contextmanager
def running(scene: Scene) -> Iterator[Device]:
    """There are results."""
    with scene.start() as device:
        device.hear("first result")
        yield device


@contextmanager
def tuning(scene: Scene) -> Iterator[Device]:
    """Models are tried."""
    with scene.start() as device:
        device.hear("tuning for")
        yield device


@contextmanager
def taking_another_bundle(scene: Scene) -> Iterator[Device]:
    """The configuration is read again, and a model loads."""
    with running(scene) as device:
        replace_bundle(scene.bundle, 2)
        device.ask_to_reload(scene.text())
        time.sleep(0.3)
        yield device


@contextmanager
def taking_another_name(scene: Scene) -> Iterator[Device]:
    """A publisher takes another's place."""
    with running(scene) as device:
        scene.name = "pi-2"
        device.ask_to_reload(scene.text())
        time.sleep(0.2)
        yield device


@contextmanager
def broker_is_frozen(scene: Scene) -> Iterator[Device]:
    """Nobody will answer the goodbye."""
    with running(scene) as device:
        scene.broker.freeze()
        time.sleep(0.2)
        yield device


@contextmanager
def broker_is_frozen_and_another_name_comes(scene: Scene) -> Iterator[Device]:
    """Nor the second one."""
    with broker_is_frozen(scene) as device:
        scene.name = "pi-2"
        device.ask_to_reload(scene.text())
        time.sleep(0.4)
        yield device


@contextmanager
def no_broker(scene: Scene) -> Iterator[Device]:
    """There never was one."""
    scene.mqtt = {"url": f"mqtt://127.0.0.1:{free_port()}"}
    with running(scene) as device:
        device.hear("not reachable")
        yield device


@contextmanager
def camera_is_frozen(scene: Scene) -> Iterator[Device]:
    """A read does not return."""
    with scene.start() as device:
        device.hear("live is open")
        scene.door.pause()
        time.sleep(0.5)
        yield device


@contextmanager
def camera_is_mute(scene: Scene) -> Iterator[Device]:
    """An opening does not return: somebody took the call, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        scene.cameras["gone"]["source"] = f"rtsp://127.0.0.1:{silent.getsockname()[1]}/x"
        with running(scene) as device:
            caller, _ = silent.accept()
            with caller:
                yield device


MOMENTS: tuple[Moment, ...] = (
    heard,
    loading,
    loading_a_little_later,
    running,
    tuning,
    taking_another_bundle,
    taking_another_name,
    broker_is_frozen,
    broker_is_frozen_and_another_name_comes,
    no_broker,
    camera_is_frozen,
    camera_is_mute,
)


def _caught(status: Path) -> int:
    """The signals that a process has a handler for, as bits."""
    return next(int(line[7:], 16) for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
