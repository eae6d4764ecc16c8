"""A device that runs out of descriptors: what is open goes on, and what must be opened again comes back by itself."""

from __future__ import annotations

import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.configs import HEALTHY, write_at_ease
from tests.support.device import Device
from tests.support.pictures import write_images, write_video
from tests.support.program import edge_sdk
from tests.support.streams import rtsp_server

pytestmark = pytest.mark.system

_TAKEN = 3  # as low as it goes: what is open stays open, and nothing more can be opened
_MANY = 1000


def _results(subscriber: Subscriber, camera: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(message.payload) for message in subscriber.messages(f"result/{camera}")]


@pytest.mark.long
def test_a_camera_a_broker_and_a_stream_that_begins_come_back(
    cell_bundle: Path, broker: Broker, long_video: Path, tmp_path: Path
) -> None:
    film = tmp_path / "film.avi"
    with rtsp_server() as server:
        streams = {"gate": HEALTHY, "yard": {"source": server.url()}, "late": {"source": film}}
        config = write_at_ease(tmp_path, cell_bundle, streams, mqtt={"url": broker.url})
        with Subscriber(broker) as subscriber, Device(config) as device:
            device.hear("late: ", "no such file or folder", "begins again")
            wait_until(lambda: len(_results(subscriber, "yard")) > 5, "results of both")
            device.limit_files(_TAKEN)
            server.kill()
            device.hear("yard: ", "lost: too many open files in this process")
            broker.stop()
            since = datetime.now(timezone.utc)
            device.hear("broker", "not reachable (Too many open files; let this process open more: LimitNOFILE=")
            device.hear("late: ", "Too many open files", "begins again")
            device.hear("warning: ", "files that this process may open are open")
            until = datetime.now(timezone.utc)
            server.start()
            broker.start()
            shutil.copy(long_video, film)
            device.limit_files(_MANY)
            device.hear("yard: ", "reopened")
            device.hear("late: ", "film.avi is open")
            device.hear("over: ", "files that this process may open")
            wait_until(lambda: bool(_results(subscriber, "late")), "results of what began late")
            taken = [msgspec.convert(r["captured_at"], datetime) for r in _results(subscriber, "gate")]
            seqs = [r["seq"] for r in _results(subscriber, "gate")]
            assert device.stop() == 0
    # The healthy one, of 20 frames a second, went on meanwhile, for half a second where the other lines were said
    # before the broker was stopped. What it could not get then it got later, in order.
    assert sum(since < each < until for each in taken) > 5 * (until - since).total_seconds()
    assert seqs == sorted(set(seqs))
    assert not device.lines_with("bug")


def test_a_repeated_film_that_must_be_opened_anew_comes_back(cell_bundle: Path, tmp_path: Path) -> None:
    """As the only stream: its end would be that of the service."""
    film = write_video(tmp_path / "film.avi", range(20), fps=20.0)
    config = write_at_ease(tmp_path, cell_bundle, {"gate": {"source": film, "repeat": True}})
    with Device(config) as device:
        device.run_on("gate")
        device.limit_files(_TAKEN)
        film.touch()  # another version, which is opened anew
        device.hear("film.avi: too many open files in this process", "begins again")
        device.limit_files(_MANY)
        device.run_on("gate")
        assert device.stop() == 0
    assert not device.lines_with("bug")


def test_a_repeated_folder_of_images_comes_back(cell_bundle: Path, tmp_path: Path) -> None:
    """As the only stream: not one of its images can be read for a moment, which is not their end."""
    folder = tmp_path / "images"
    write_images(folder, ["a.png", "b.png", "c.png"])
    config = write_at_ease(tmp_path, cell_bundle, {"gate": {"source": folder, "repeat": True}})
    with Device(config) as device:
        device.run_on("gate")
        device.limit_files(_TAKEN)
        device.hear(".png: cannot be read: Too many open files", "begins again")
        device.limit_files(_MANY)
        device.run_on("gate")
        assert device.stop() == 0
    assert not device.lines_with("bug")


def test_with_too_few_from_the_start_it_is_tried_again(cell_bundle: Path, tmp_path: Path) -> None:
    """No process can be made that tries the bundle: that says nothing of the bundle."""
    config = write_at_ease(tmp_path, cell_bundle, {"gate": HEALTHY, "yard": HEALTHY})
    state = {"XDG_STATE_HOME": str(tmp_path)}
    with Device(config, before=("prlimit", "--nofile=8:1000"), environment=state) as device:
        for camera in ("gate", "yard"):
            device.hear(f"{camera}: ", "no process can be started: Too many open files", "begins again")
        device.limit_files(_MANY)
        for camera in ("gate", "yard"):
            device.run_on(camera)
        assert device.stop() == 0
    assert not device.lines_with("bug")


def test_a_bundle_that_cannot_be_tried_at_present_is_not_called_one_that_cannot_run(
    cell_bundle: Path, tmp_path: Path
) -> None:
    done = edge_sdk(
        *("run", cell_bundle, "--source", HEALTHY["source"]),
        before=("prlimit", "--nofile=8:1000"),
        XDG_STATE_HOME=str(tmp_path),
    )
    assert done.returncode == 1  # a service manager tries it again
    assert "no process can be started: Too many open files" in done.stderr.splitlines()[-1]
