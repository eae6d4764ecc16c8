"""A device: `edge-sdk run` by a configuration file, its cameras, clock and disks, and moments at which it ends."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from tests.support.broker import Broker, Subscriber, free_port, wait_until
from tests.support.bundles import cell_picture, copy_bundle, replace_bundle
from tests.support.configs import AT_EASE, Table, config_text, write_config
from tests.support.pictures import write_frames
from tests.support.program import PATIENCE_S
from tests.support.streams import StreamServer

# A device: `edge-sdk run` by a configuration file, whose words are heard while it runs.

_ROOT = Path(__file__).parents[2]
_ANSWERS = ("configuration read again", "the configuration is not taken")


def own_folders(folder: Path) -> dict[str, Path]:
    """Variables with which it has its state in `state` and its temporary files in `scratch` of a folder."""
    folders = {"STATE_DIRECTORY": folder / "state", "TMPDIR": folder / "scratch"}
    folders["TMPDIR"].mkdir(exist_ok=True)
    return folders


class Device:
    """A running program; as a context manager it is gone at the end, and where a test fails its words are printed."""

    def __init__(
        self, config: Path, *arguments: str, before: Sequence[str] = (),
        environment: Mapping[str, object] | None = None, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE,
    ) -> None:  # fmt: skip
        self._config = config
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "edge_sdk", "run", "--config", str(config), *arguments],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            env={**os.environ, **{name: str(value) for name, value in (environment or {}).items()}}, cwd=_ROOT,
        )  # fmt: skip
        self._said: list[str] = []
        self._printed: list[str] = []
        self._ears = [
            ear(file, lines)
            for file, lines in ((self.process.stdout, self._printed), (self.process.stderr, self._said))
            if file is not None
        ]

    def __enter__(self) -> Device:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if not self.is_over:
            self.process.kill()
        self._listen_to_the_end()
        if error is not None:
            sys.stdout.write("".join(f"{line}\n" for line in self.said))

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    @property
    def said(self) -> list[str]:
        return list(self._said)

    @property
    def printed(self) -> list[str]:
        return list(self._printed)

    def lines_with(self, *words: str) -> list[str]:
        return [line for line in self.said if all(word in line for word in words)]

    def hear(self, *words: str, count: int = 1) -> str:
        """Wait for so many lines for people that hold all of these words: the last of them."""
        self._wait(lambda: len(self.lines_with(*words)) >= count, f"{count} lines with {' and '.join(words)}")
        return self.lines_with(*words)[count - 1]

    def run_on(self, camera: str, count: int = 5) -> None:
        mark = f'"camera":"{camera}"'  # looked for often: decoding all of them takes the device's processor

        def results() -> int:
            return sum(mark in line for line in self.printed)

        wanted = results() + count
        self._wait(lambda: results() >= wanted, f"{count} more results of {camera}")

    def ask_to_reload(self, text: str | None = None) -> None:
        """Have it read its configuration again, another one where that is given; its answer is not waited for."""
        if text is not None:
            assert write_config(self._config.parent, text) == self._config
        self.process.send_signal(signal.SIGHUP)

    def reload(self, text: str | None = None) -> str:
        """Have it read its configuration again, another one where that is given: the line in which it answers."""
        before = len(self.said)
        self.ask_to_reload(text)

        def answers() -> list[str]:
            return [line for line in self.said[before:] if any(words in line for words in _ANSWERS)]

        self._wait(lambda: bool(answers()), "what it says of reading its configuration again")
        return answers()[0]

    def limit_files(self, soft: int) -> None:
        """How many descriptors it may have; it keeps those that it has."""
        hard = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (min(soft, hard), hard))

    def threads(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/task").iterdir())

    def descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._listen_to_the_end()
        assert not any(ear.is_alive() for ear in self._ears), "a process that it left behind holds its output"
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.end()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: condition() or self.is_over, what)
        if not condition():
            self._listen_to_the_end()
            assert condition(), f"it ended instead of {what}: {self.said}"

    def _listen_to_the_end(self) -> None:
        self.process.wait(PATIENCE_S)
        for ear in self._ears:
            ear.join(PATIENCE_S)


def ear(file: IO[bytes], lines: list[str]) -> threading.Thread:
    def listen() -> None:
        with file, contextlib.suppress(OSError):  # as a terminal that is closed says
            lines.extend(line.decode(errors="replace").rstrip() for line in file)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    return thread


class Configured:
    """What a device's configuration says, which a test may change before each start and reload."""

    def __init__(self, folder: Path, bundle: Path, broker: Broker) -> None:
        self.folder, self.name, self.keys = folder, "pi", list[Path]()
        self.bundle = copy_bundle(bundle, folder / "cells.edge", 1)
        self.mqtt: dict[str, object] = {"url": broker.url}
        self.defaults: dict[str, object] = {"bundle": self.bundle, "tune": False}
        self.cameras: dict[str, dict[str, object]] = {}

    def text(self) -> str:
        trust = {"keys": self.keys} if self.keys else None
        return config_text(
            self.cameras, device={"name": self.name}, mqtt=self.mqtt, trust=trust, defaults=self.defaults
        )

    def start(self, *arguments: str, stdout: int = subprocess.PIPE) -> Device:
        config, environment = write_config(self.folder, self.text()), own_folders(self.folder)
        return Device(config, *arguments, environment=environment, stdout=stdout)


# A run that has events all the time: what its video shows comes and goes every half second.

_RULES = '[[events]]\nlabels = ["red", "blue"]\ndisappear_s = 0\n'


def write_blinking_video(path: Path) -> Path:
    """Two minutes of 20 frames a second: a red and a blue cell for ten, and nothing for ten."""
    noise = np.random.default_rng(7).integers(0, 24, (128, 128, 3), np.uint8)  # makes some kilobytes of each
    shown = np.maximum(cell_picture(1), noise)
    return write_frames(path, (shown if index // 10 % 2 else noise for index in range(2400)), 20)


def write_blinking_config(folder: Path, bundle: Path, source: object, **tables: Table) -> Path:
    """A configuration whose camera `gate` tells eight events in two seconds."""
    text = config_text({"gate": {"source": source, "repeat": True}}, **tables, defaults={**AT_EASE, "bundle": bundle})
    return write_config(folder, f"{text}\n{_RULES}")


# Moments at which a run is told to end, on a device with three cameras; tests and a benchmark share them.


class Scene(Configured):
    """A device with one camera that is there, one that is not and one that is drawn."""

    def __init__(self, folder: Path, bundle: Path, door: StreamServer, broker: Broker) -> None:
        super().__init__(folder, bundle, broker)
        self.door, self.broker = door, broker
        self.cameras = {
            "door": {"source": door.url()},
            "gone": {"source": f"rtsp://127.0.0.1:{free_port()}/x"},
            "bars": {"source": "pattern:320x240@20"},
        }


Moment = Callable[[Scene], AbstractContextManager[Device]]
"""A device that has just come there."""
MOMENTS: list[Moment] = []


def _after(before: Moment) -> Callable[[Callable[[Scene, Device], object]], Moment]:
    def decorated(do: Callable[[Scene, Device], object]) -> Moment:
        @functools.wraps(do)
        @contextmanager
        def moment(scene: Scene) -> Iterator[Device]:
            with before(scene) as device:
                do(scene, device)
                yield device

        MOMENTS.append(moment)
        return moment

    return decorated


@_after(Scene.start)
def heard(_scene: Scene, device: Device) -> None:
    """The first moment at which Python hears the signal; before, the kernel ends the process by it."""
    status, bit = Path(f"/proc/{device.process.pid}/status"), 1 << signal.SIGTERM - 1
    wait_until(lambda: bool(_caught(status) & bit), "somebody to hear SIGTERM")


@_after(Scene.start)
def loading(_scene: Scene, device: Device) -> None:
    device.hear("no trusted key")


@_after(Scene.start)
def running(_scene: Scene, device: Device) -> None:
    device.hear("first result")


@_after(Scene.start)
def tuning(_scene: Scene, device: Device) -> None:
    device.hear("tuning for")


@_after(running)
def taking_another_bundle(scene: Scene, device: Device) -> None:
    """The configuration is read again, and a model loads."""
    replace_bundle(scene.bundle, 2)
    device.ask_to_reload(scene.text())
    time.sleep(0.3)


@_after(running)
def broker_is_frozen(scene: Scene, _device: Device) -> None:
    """Nobody will answer the offline message."""
    scene.broker.freeze()
    time.sleep(0.2)


@_after(broker_is_frozen)
def broker_is_frozen_and_another_name_comes(scene: Scene, device: Device) -> None:
    """Nobody will answer the offline messages of either name."""
    scene.name = "pi-2"
    device.ask_to_reload(scene.text())
    time.sleep(0.4)


def _start_without_a_broker(scene: Scene) -> Device:
    scene.mqtt = {"url": f"mqtt://127.0.0.1:{free_port()}"}
    return scene.start()


@_after(_start_without_a_broker)
def no_broker(_scene: Scene, device: Device) -> None:
    device.hear("first result")
    device.hear("not reachable")


@_after(Scene.start)
def camera_is_frozen(scene: Scene, device: Device) -> None:
    device.hear("live is open")
    scene.door.pause()
    time.sleep(0.5)


@contextmanager
def camera_is_mute(scene: Scene) -> Iterator[Device]:
    """An opening does not return: somebody took the call, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        scene.cameras["gone"]["source"] = f"rtsp://127.0.0.1:{silent.getsockname()[1]}/x"
        with running(scene) as device:
            caller, _ = silent.accept()
            with caller:
                yield device


MOMENTS.append(camera_is_mute)


def _caught(status: Path) -> int:
    return next(int(line[7:], 16) for line in status.read_text().splitlines() if line.startswith("SigCgt:"))


# Results of several cameras, as a subscriber got them.


def count_results(subscriber: Subscriber, cameras: Iterable[str]) -> dict[str, int]:
    return {camera: len(subscriber.messages(f"/result/{camera}")) for camera in cameras}


def wait_for_results(subscriber: Subscriber, device: Device, cameras: Iterable[str], more: int = 1) -> None:
    """Wait until each of the cameras has so many more; the device must run on."""
    before = count_results(subscriber, cameras)

    def are_there() -> bool:
        now = count_results(subscriber, before)
        return device.is_over or all(now[camera] >= count + more for camera, count in before.items())

    wait_until(are_there, f"{more} more results of each of {[*before]}")
    assert not device.is_over, device.said
