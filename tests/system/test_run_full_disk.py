"""A device whose disk is full: it runs on without remembering, or says in one line what cannot be written."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.support.broker import Broker, Subscriber
from tests.support.configs import HEALTHY, write_at_ease
from tests.support.device import Device, full_disk, read_only
from tests.support.program import edge_sdk

pytestmark = pytest.mark.system

_STREAMS = {"gate": HEALTHY, "yard": HEALTHY}
_FULL = "No space left on device"


def test_what_is_found_out_is_not_remembered_and_the_streams_run(
    cell_bundle: Path, broker: Broker, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    config = write_at_ease(tmp_path, cell_bundle, _STREAMS, mqtt={"url": broker.url})
    with (
        full_disk(disk) as mounts,
        Subscriber(broker) as subscriber,
        Device(config, before=mounts.within, environment={"XDG_STATE_HOME": str(disk)}) as device,
    ):
        line = device.hear("gate: that the bundle was tried cannot be remembered")
        assert line.endswith(_FULL)
        device.hear("warning: the disk is nearly full: 0 MB are free of 1; make room")
        for camera in ("gate", "yard"):
            subscriber.wait_for(
                lambda messages, topic=f"result/{camera}": sum(m.topic.endswith(topic) for m in messages) > 10,
                f"results of {camera}",
            )
        subscriber.wait_for(
            lambda messages: any("disk" in _warnings(m.payload) for m in messages if m.topic.endswith("/state")),
            "a state with the warning",
        )
        subscriber.wait_for(lambda messages: any(m.topic.endswith("/telemetry") for m in messages), "telemetry")
        assert msgspec.json.decode(subscriber.messages("/telemetry")[0].payload)["disk_free_mb"] == 0
        assert device.stop() == 0
        left = [name for name in mounts.files(disk) if name != "fill" and not name.endswith(".lock")]
        assert left == []  # not even a part of a record; the lock of the device's name has no content
    assert not device.lines_with("bug")


def _warnings(state: bytes) -> dict[str, str]:
    found: dict[str, str] = msgspec.json.decode(state).get("warnings", {})
    return found


def test_where_nothing_at_all_can_be_written_it_runs(cell_bundle: Path, tmp_path: Path) -> None:
    """As on a card that failed: no folder for a while, either, in which a new bundle could be tried."""
    config = write_at_ease(tmp_path, cell_bundle, _STREAMS)
    with (
        read_only(tmp_path) as mounts,
        Device(config, before=mounts.within, environment={"XDG_STATE_HOME": str(tmp_path / "state")}) as device,
    ):
        device.hear("gate: that the bundle was tried cannot be remembered", "Read-only file system")
        for camera in ("gate", "yard"):
            device.run_on(camera)
        assert device.stop() == 0
    assert not (tmp_path / "state").exists()
    assert not device.lines_with("bug")


def test_results_in_a_file_end_with_a_whole_line(cell_bundle: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    config = write_at_ease(tmp_path, cell_bundle, _STREAMS)
    with full_disk(disk, room_kb=16) as mounts:
        with mounts.path(disk / "results").open("wb") as results:
            device = Device(config, before=mounts.within, stdout=results.fileno())
        with device:
            assert device.end() == 1
        lines = mounts.path(disk / "results").read_bytes().splitlines(keepends=True)
    assert device.said[-1] == f"edge-sdk: results cannot be written: {_FULL}"
    assert len(lines) > 10
    assert all(line.endswith(b"\n") and msgspec.json.decode(line) for line in lines)


@pytest.mark.parametrize("is_buffered", [True, False])
def test_words_for_people_that_cannot_be_written_end_nothing(
    cell_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_buffered: bool
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "" if is_buffered else "1")
    config = write_at_ease(tmp_path, cell_bundle, _STREAMS)
    with Path("/dev/full").open("wb") as full:
        with Device(config, stderr=full.fileno()) as device:
            for camera in ("gate", "yard"):
                device.run_on(camera)
            assert device.stop() == 0
        with Device(tmp_path / "none.toml", stderr=full.fileno()) as refused:
            assert refused.end() == 2


@pytest.mark.parametrize("is_buffered", [True, False])
def test_what_was_asked_for_and_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch, is_buffered: bool) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "" if is_buffered else "1")
    done = edge_sdk("targets", before=["sh", "-c", 'exec "$@" >/dev/full', "sh"])
    assert done.returncode == 1, done.stderr
    expected = f"edge-sdk: standard output cannot be written: {_FULL}; check the space on its disk"
    assert done.stderr.splitlines() == [expected]


@pytest.mark.parametrize("room_kb", [0, 4])
@pytest.mark.parametrize("environment", [{}, {"PATH": "/none"}], ids=["ffmpeg", "OpenCV"])
def test_an_annotated_video_leaves_no_part_of_itself(
    cell_bundle: Path, tmp_path: Path, environment: dict[str, str], room_kb: int
) -> None:
    disk = tmp_path / "disk"
    video = disk / "a.mp4"
    with full_disk(disk, room_kb=room_kb) as mounts:
        options = ("--source", "pattern:1280x720@30", "--annotate", video, "--duration", 5, "--no-tune", "--quiet")
        done = edge_sdk("run", cell_bundle, *options, before=mounts.within, **environment)
        assert list(mounts.files(disk)) == ["fill"]
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"edge-sdk: {video}: cannot be written: ")
    assert line.endswith("; check the folder and the space on its disk")
