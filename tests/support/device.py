"""A device: `edge-sdk run` by a configuration file, its cameras, clock and disks, and moments at which it ends."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

import cv2
import msgspec
import numpy as np

from tests.support.absent import not_allowed
from tests.support.broker import Broker, Subscriber, free_port, require_program, wait_until
from tests.support.bundles import cell_picture, copy_bundle, replace_bundle
from tests.support.configs import AT_EASE, Table, config_text, write_config
from tests.support.pictures import counted_in, write_counted_folder, write_counted_video
from tests.support.program import PATIENCE_S
from tests.support.streams import StreamServer
from tests.support.subscribers import documents

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
        self,
        config: Path,
        *arguments: str,
        before: Sequence[str] = (),
        environment: Mapping[str, object] | None = None,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> None:
        self._config = config
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "edge_sdk", "run", "--config", str(config), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **{name: str(value) for name, value in (environment or {}).items()}},
            cwd=_ROOT,
        )
        self._said: list[str] = []
        self._printed: list[str] = []
        self._ears = [
            _ear(file, lines)
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
        """Lines for people so far."""
        return list(self._said)

    @property
    def printed(self) -> list[str]:
        return list(self._printed)

    def lines_with(self, *words: str) -> list[str]:
        return [line for line in self.said if all(word in line for word in words)]

    def results(self, camera: str) -> list[dict[str, Any]]:
        decoded = [msgspec.json.decode(line) for line in self.printed]
        return [each for each in decoded if each.get("stream") == "result" and each["camera"] == camera]

    def hear(self, *words: str, count: int = 1) -> str:
        """Wait for so many lines for people that hold all of these words: the last of them."""
        self._wait(lambda: len(self.lines_with(*words)) >= count, f"{count} lines with {' and '.join(words)}")
        return self.lines_with(*words)[count - 1]

    def run_on(self, camera: str, count: int = 5) -> None:
        """Wait for so many more results of a stream on standard output."""
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


def _ear(file: IO[bytes], lines: list[str]) -> threading.Thread:
    """A thread that puts each whole line into a list."""

    def listen() -> None:
        with file:
            lines.extend(line.decode().rstrip() for line in file)

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


# A device whose cameras count, its broker, and whoever listens there.

FILM, FOLDER = 240, 40
"""Frames of the film, pictures of the folder; both begin again."""


def write_sources(folder: Path) -> Path:
    write_counted_video(folder / "film.avi", FILM)
    write_counted_folder(folder / "pictures", FOLDER)
    return folder


class Site(Configured):
    """A device, its broker, and whoever listens there."""

    def __init__(self, folder: Path, bundle: Path, sources: Path) -> None:
        self.broker = self.another_broker(folder / "broker")
        super().__init__(folder, bundle, self.broker)
        self.sources, self.listener = sources, Subscriber(self.broker)
        self.defaults["repeat"] = True
        self.cameras = {
            "film": {"source": sources / "film.avi", "every_frame": True},
            "bars": {"source": "pattern:320x240@20"},
        }

    @staticmethod
    def another_broker(folder: Path) -> Broker:
        folder.mkdir()
        return Broker(folder, config=["max_queued_messages 0"])

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Device]:
        """The device, once all cameras have results."""
        with self.start(*arguments) as device:
            for camera in self.cameras:
                self.wait_for_more(camera)
            self.wait_for_cameras(*self.cameras)
            yield device

    def results(self, camera: str) -> list[dict[str, Any]]:
        return documents(self.listener.messages(f"/result/{camera}"))

    def versions(self, camera: str) -> list[int]:
        return [version for version, _ in itertools.groupby(r["model"]["version"] for r in self.results(camera))]

    def statuses(self) -> list[tuple[str, list[str]]]:
        return [(d["status"], sorted(d.get("cameras", ()))) for d in documents(self.listener.messages("/status"))]

    def wait_for_more(self, camera: str, count: int = 5) -> None:
        before = len(self.results(camera))
        wait_until(lambda: len(self.results(camera)) >= before + count, f"results of {camera}")

    def wait_for_version(self, camera: str, version: int) -> None:
        wait_until(lambda: self.versions(camera)[-1:] == [version], f"version {version} of {camera}")

    def wait_for_cameras(self, *cameras: str) -> None:
        """In what the device says of itself, and of them."""

        def are_there() -> bool:
            states = documents(self.listener.messages("/state"))
            return self.statuses()[-1] == ("online", sorted(cameras)) and set(states[-1]["cameras"]) == set(cameras)

        wait_until(are_there, f"{cameras} in status and state; {self.statuses()[-1]}")

    def stop(self, device: Device) -> None:
        assert device.stop() == 0, device.said
        wait_until(lambda: self.statuses()[-1][0] == "offline", "the goodbye")
        assert [status for status, _ in self.statuses()].count("offline") == 1
        assert not device.lines_with("Traceback")


def assert_increasing(results: list[dict[str, Any]]) -> None:
    numbers = [result["seq"] for result in results]
    assert numbers == sorted(set(numbers))


def assert_whole(results: list[dict[str, Any]], length: int) -> None:
    """Every frame of a source has its one result, and the result is of that frame."""
    assert [result["seq"] for result in results] == list(range(len(results)))
    assert [counted_in(result) for result in results] == [number % length for number in range(len(results))]


def assert_film_then_pictures(results: list[dict[str, Any]]) -> None:
    """Numbers go on where another source counts from 0; all of both are there."""
    assert [result["seq"] for result in results] == list(range(len(results)))
    counted = [counted_in(result) for result in results]
    change = next(i for i in range(1, len(counted)) if counted[i] == 0 and counted[i - 1] != FILM - 1)
    assert counted[:change] == [number % FILM for number in range(change)]
    assert counted[change:] == [number % FOLDER for number in range(len(counted) - change)]


# A run that has events all the time: what its video shows comes and goes every half second.

_FPS, _HALF = 20, 10
_RULES = '[[events]]\nlabels = ["red", "blue"]\ndisappear_s = 0\n'


def write_blinking_video(path: Path, seconds: int = 120) -> Path:
    """A red and a blue cell for ten frames, and nothing for ten frames."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), _FPS, (128, 128))
    shown, black = _pictures()
    for index in range(seconds * _FPS):
        writer.write(shown if index // _HALF % 2 else black)
    writer.release()
    return path


def _pictures() -> tuple[np.ndarray, np.ndarray]:
    """With cells, and without; noise makes some kilobytes of them."""
    noise = np.random.default_rng(7).integers(0, 24, (128, 128, 3), np.uint8)
    return np.maximum(cell_picture(1), noise), noise


def write_blinking_config(folder: Path, bundle: Path, source: object, **tables: Table) -> Path:
    """A configuration whose camera `gate` tells eight events in two seconds."""
    text = config_text({"gate": {"source": source}}, **tables, defaults={**AT_EASE, "bundle": bundle})
    return write_config(folder, f"{text}\n{_RULES}")


class BlinkingCamera:
    """The same as a camera of MJPEG over HTTP, whose pictures are taken when they come; as a context manager."""

    def __init__(self) -> None:
        shown, black = _pictures()
        encoded = [cv2.imencode(".jpg", picture)[1].tobytes() for picture in (black, shown)]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=next")
                self.end_headers()
                with contextlib.suppress(OSError):  # who looked has gone
                    for index in itertools.count():
                        head = b"--next\r\nContent-Type: image/jpeg\r\n\r\n"
                        self.wfile.write(head + encoded[index // _HALF % 2] + b"\r\n")
                        time.sleep(1 / _FPS)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> BlinkingCamera:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


# What a process holds and has used, as the kernel tells it.

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Held(msgspec.Struct, frozen=True):
    memory_mb: float
    files: int
    threads: int
    cpu_s: float


def held_by(pid: int) -> Held:
    proc = Path(f"/proc/{pid}")
    pages = int((proc / "statm").read_text(encoding="ascii").split()[1])
    times = (proc / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()  # a name may hold spaces
    files, threads = (sum(1 for _ in (proc / name).iterdir()) for name in ("fd", "task"))
    return Held(pages * _PAGE_MB, files, threads, (int(times[11]) + int(times[12])) * _TICK_S)


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
    """A moment that comes where this is done after another one."""

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
    """The model begins to load."""
    device.hear("no trusted key")


@_after(Scene.start)
def running(_scene: Scene, device: Device) -> None:
    """There are results."""
    device.hear("first result")


@_after(Scene.start)
def tuning(_scene: Scene, device: Device) -> None:
    """Models are tried."""
    device.hear("tuning for")


@_after(running)
def taking_another_bundle(scene: Scene, device: Device) -> None:
    """The configuration is read again, and a model loads."""
    replace_bundle(scene.bundle, 2)
    device.ask_to_reload(scene.text())
    time.sleep(0.3)


@_after(running)
def broker_is_frozen(scene: Scene, _device: Device) -> None:
    """Nobody will answer the goodbye."""
    scene.broker.freeze()
    time.sleep(0.2)


@_after(broker_is_frozen)
def broker_is_frozen_and_another_name_comes(scene: Scene, device: Device) -> None:
    """Nor the second one."""
    scene.name = "pi-2"
    device.ask_to_reload(scene.text())
    time.sleep(0.4)


def _start_without_a_broker(scene: Scene) -> Device:
    scene.mqtt = {"url": f"mqtt://127.0.0.1:{free_port()}"}
    return scene.start()


@_after(_start_without_a_broker)
def no_broker(_scene: Scene, device: Device) -> None:
    """There never was one."""
    device.hear("first result")
    device.hear("not reachable")


@_after(Scene.start)
def camera_is_frozen(scene: Scene, device: Device) -> None:
    """A read does not return."""
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
    """The signals that a process has a handler for, as bits."""
    return next(int(line[7:], 16) for line in status.read_text().splitlines() if line.startswith("SigCgt:"))


# File systems that only the programs of one test see, in a mount namespace of their own.

DISK_KB = 1024


class Mounts:
    """A namespace with other mounts; as a context manager it is gone at the end. Skips the test who may not have one.

    Args:
        script: of the shell, in it.
    """

    def __init__(self, script: str) -> None:
        # Its own standard input is what it waits for: nothing is left behind, however the test ends.
        self._holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", f"{script} && echo ready && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._holder.stdout
        if self._holder.stdout.readline() != b"ready\n":
            self._end()
            not_allowed("no mount namespace may be made here: it takes root and CAP_SYS_ADMIN")

    def __enter__(self) -> Mounts:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def within(self) -> tuple[str, ...]:
        """A command that runs another one in there."""
        return (shutil.which("nsenter") or "nsenter", "-m", "-t", str(self._holder.pid), "--")

    def path(self, path: Path) -> Path:
        """Where that which is there under this path is from outside."""
        return Path(f"/proc/{self._holder.pid}/root") / path.relative_to("/")

    def files(self, folder: Path) -> dict[str, int]:
        root = self.path(folder)
        return {str(p.relative_to(root)): p.stat().st_size for p in sorted(root.rglob("*")) if p.is_file()}

    def _end(self) -> None:
        self._holder.communicate()


def full_disk(folder: Path, room_kb: int = 0) -> Mounts:
    """A disk of a megabyte at `folder`, full but for so much; what fills it is the file `fill`."""
    folder.mkdir()
    fill = f"head -c {(DISK_KB - room_kb) * 1024} /dev/zero > {folder}/fill"
    return Mounts(f"mount -t tmpfs -o size={DISK_KB}k tmpfs {folder} && {fill}")


def read_only(*folders: Path) -> Mounts:
    """Nothing can be written: not to these folders, nor where programs put what they need for a while."""
    places = {*map(str, folders), "/tmp", "/var/tmp", "/usr/tmp", tempfile.gettempdir(), str(Path.cwd())}
    bound = "for d in {}; do [ ! -d $d ] || {{ mount --rbind $d $d && mount -o remount,bind,ro $d; }} || exit 1; done"
    return Mounts("mount -o remount,bind,ro / && " + bound.format(" ".join(sorted(places))))


# The wall clock of one program, put forward and back while it runs; its monotonic clocks are the machine's.


class WallClock:
    """Of the programs that get its `environment`."""

    def __init__(self, folder: Path, off: timedelta) -> None:
        self._library, self._file = folder / "wall_clock.so", folder / "wall_clock"
        source = Path(__file__).with_name("wall_clock.c")
        subprocess.run([require_program("cc"), "-shared", "-fPIC", "-o", self._library, source], check=True)
        self._file.write_bytes(bytes(8))
        self.leap(off)

    @property
    def environment(self) -> Mapping[str, object]:
        return {"LD_PRELOAD": self._library, "WALL_CLOCK_FILE": self._file}

    def leap(self, off: timedelta) -> None:
        with self._file.open("r+b") as file:  # in place: the programs have it mapped
            file.write(struct.pack("=q", round(off.total_seconds())))


# Results of several cameras, as a subscriber got them.


class Result(msgspec.Struct, frozen=True):
    camera: str
    run_id: str
    seq: int
    age_ms: float
    infer_ms: float


def count_results(subscriber: Subscriber, cameras: Iterable[str]) -> dict[str, int]:
    return {camera: len(subscriber.messages(f"/result/{camera}")) for camera in cameras}


def results_after(subscriber: Subscriber, counts: Mapping[str, int]) -> dict[str, list[Result]]:
    """What came of each camera after the first so many."""
    return {
        camera: [
            msgspec.json.decode(message.payload, type=Result)
            for message in subscriber.messages(f"/result/{camera}")[count:]
        ]
        for camera, count in counts.items()
    }


def wait_for_results(subscriber: Subscriber, device: Device, cameras: Iterable[str], more: int = 1) -> None:
    """Wait until each of the cameras has so many more; the device must run on."""
    before = count_results(subscriber, cameras)

    def are_there() -> bool:
        now = count_results(subscriber, before)
        return device.is_over or all(now[camera] >= count + more for camera, count in before.items())

    wait_until(are_there, f"{more} more results of each of {[*before]}")
    assert not device.is_over, device.said
