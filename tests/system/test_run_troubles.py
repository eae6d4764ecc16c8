"""A device that lacks cameras, disk, descriptors or rights runs on, says what is lost, and uses what it gets back."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.absent import not_allowed
from tests.support.broker import Broker, Subscriber, free_port, require_program, wait_until
from tests.support.bundles import LARGE, endless, failing, write_graded, write_real_bundle
from tests.support.configs import AT_EASE, HEALTHY, Table, config_text, write_at_ease, write_config
from tests.support.device import Device, count_results, own_folders, wait_for_results, write_blinking_config
from tests.support.outboxes import outbox_at, put, say_acknowledged, taken
from tests.support.program import edge_sdk
from tests.support.streams import http_server, rtsp_server
from tests.support.subscribers import documents, statuses, warnings

pytestmark = pytest.mark.system

_PIPELINES = {"gate": HEALTHY, "yard": HEALTHY}
_FULL = "No space left on device"


def _events(subscriber: Subscriber) -> list[dict[str, Any]]:
    return documents(subscriber.messages("event/gate"))


def _are_whole(subscriber: Subscriber) -> bool:
    seqs = list(dict.fromkeys(event["seq"] for event in _events(subscriber)))
    return seqs == list(range(seqs[0], seqs[0] + len(seqs)))


# File systems that only the programs of one test see, in a mount namespace of their own.


class _Mounts:
    """A namespace in which a script mounts; gone at the end. Skips the test who may not have one."""

    def __init__(self, script: str) -> None:
        # Its own standard input is what it waits for: nothing is left behind, however the test ends.
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", f"{script} && echo ready && exec cat"]
        pipe = subprocess.PIPE
        self._holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        assert self._holder.stdout
        if self._holder.stdout.readline() != b"ready\n":
            self._holder.communicate()
            not_allowed("no mount namespace may be made here: it takes root and CAP_SYS_ADMIN")

    def __enter__(self) -> _Mounts:
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.communicate()

    @property
    def within(self) -> tuple[str, ...]:
        return (shutil.which("nsenter") or "nsenter", "-m", "-t", str(self._holder.pid), "--")

    def path(self, path: Path) -> Path:
        """The path from outside of the file that is at `path` inside."""
        return Path(f"/proc/{self._holder.pid}/root") / path.relative_to("/")


def _full_disk(folder: Path, room_kb: int = 0) -> _Mounts:
    """A disk of a megabyte at `folder`, full but for so much; what fills it is the file `fill`."""
    folder.mkdir()
    fill = f"head -c {(1024 - room_kb) * 1024} /dev/zero > {folder}/fill"
    return _Mounts(f"mount -t tmpfs -o size=1024k tmpfs {folder} && {fill}")


def _read_only(*folders: Path) -> _Mounts:
    """Nothing can be written: not to these folders, nor where programs put what they need for a while."""
    places = {*map(str, folders), "/tmp", "/var/tmp", "/usr/tmp", tempfile.gettempdir(), str(Path.cwd())}
    bound = "for d in {}; do [ ! -d $d ] || {{ mount --rbind $d $d && mount -o remount,bind,ro $d; }} || exit 1; done"
    return _Mounts("mount -o remount,bind,ro / && " + bound.format(" ".join(sorted(places))))


# A disk that is full.


def test_on_a_full_disk_the_streams_run(cell_bundle: Path, broker: Broker, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    config = write_at_ease(tmp_path, cell_bundle, _PIPELINES, mqtt={"url": broker.url})
    with (
        _full_disk(disk) as mounts,
        Subscriber(broker) as subscriber,
        Device(config, before=mounts.within, environment={"XDG_STATE_HOME": str(disk)}) as device,
    ):
        device.hear("gate: the trial of the bundle cannot be recorded", _FULL)
        device.hear("warning: the disk is nearly full: 0 MB are free of 1; make room")
        wait_for_results(subscriber, device, _PIPELINES, 10)
        subscriber.wait_for(lambda _: "disk" in warnings(subscriber), "a state with the warning")
        subscriber.wait_for(lambda _: bool(subscriber.messages("/telemetry")), "telemetry")
        assert documents(subscriber.messages("/telemetry"))[0]["disk_free_mb"] == 0
        assert device.stop() == 0
        left = {path.suffix for path in mounts.path(disk).rglob("*") if path.is_file() and path.name != "fill"}
        assert left <= {".lock"}  # not even a part of a record; the lock of the device's name has no content
    assert not device.lines_with("bug")


def test_where_nothing_at_all_can_be_written_it_runs(cell_bundle: Path, tmp_path: Path) -> None:
    """As on a card that failed: there is no temporary folder either in which a new bundle could be tried."""
    config = write_at_ease(tmp_path, cell_bundle, _PIPELINES)
    with (
        _read_only(tmp_path) as mounts,
        Device(config, before=mounts.within, environment={"XDG_STATE_HOME": str(tmp_path / "state")}) as device,
    ):
        device.hear("gate: the trial of the bundle cannot be recorded", "Read-only file system")
        for camera in _PIPELINES:
            device.run_on(camera)
        assert device.stop() == 0
    assert not (tmp_path / "state").exists()
    assert not device.lines_with("bug")


def test_results_in_a_file_end_with_a_whole_line(cell_bundle: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    config = write_at_ease(tmp_path, cell_bundle, _PIPELINES)
    with _full_disk(disk, room_kb=16) as mounts:
        with mounts.path(disk / "results").open("wb") as results:
            device = Device(config, before=mounts.within, stdout=results.fileno())
        with device:
            assert device.end() == 1
        lines = mounts.path(disk / "results").read_bytes().splitlines(keepends=True)
    assert device.said[-1] == f"edge-sdk: results cannot be written: {_FULL}"
    assert len(lines) > 10
    assert all(line.endswith(b"\n") and msgspec.json.decode(line) for line in lines)


def test_words_for_people_that_cannot_be_written_end_nothing_and_what_was_asked_for_is_said(
    cell_bundle: Path, tmp_path: Path
) -> None:
    config = write_at_ease(tmp_path, cell_bundle, {"gate": HEALTHY})
    with Path("/dev/full").open("wb") as full:
        for unbuffered in ("", "1"):
            with Device(config, stderr=full.fileno(), environment={"PYTHONUNBUFFERED": unbuffered}) as device:
                device.run_on("gate")
                assert device.stop() == 0
        with Device(tmp_path / "none.toml", stderr=full.fileno()) as refused:
            assert refused.end() == 2
    done = edge_sdk("targets", before=["sh", "-c", 'exec "$@" >/dev/full', "sh"])
    expected = f"edge-sdk: standard output cannot be written: {_FULL}; check the space on its disk\n"
    assert (done.returncode, done.stderr) == (1, expected)


# No descriptor is left.


@pytest.mark.long
def test_cameras_a_broker_events_and_a_stream_that_begins_come_back_with_descriptors(
    cell_bundle: Path, broker: Broker, long_video: Path, blinking_video: Path, tmp_path: Path
) -> None:
    film = tmp_path / "film.avi"
    with rtsp_server() as server:
        config = write_blinking_config(tmp_path, cell_bundle, blinking_video, mqtt={"url": broker.url})
        more = config_text({"yard": {"source": server.url()}, "late": {"source": film}}, device=None)
        config.write_text(config.read_text() + more)
        with Subscriber(broker) as subscriber, Device(config, environment=own_folders(tmp_path)) as device:
            device.hear("late: ", "no such file or folder", "begins again")
            wait_until(lambda: len(subscriber.messages("result/yard")) > 5, "results of both")
            subscriber.wait_for(lambda _: len(_events(subscriber)) > 2, "events")
            device.limit_files(3)  # what is open stays open, and nothing more can be opened
            server.kill()
            device.hear("yard: ", "lost: too many files are open; let this process open more")
            broker.stop()
            device.hear("broker", "not reachable (Too many open files; let this process open more: LimitNOFILE=")
            before = len(_events(subscriber))
            device.hear("late: ", "Too many open files", "begins again")
            device.hear("warning: ", "files that this process may open are open")
            server.start()
            subscriptions = subscriber.subscriptions
            broker.start()
            wait_until(lambda: subscriber.subscriptions > subscriptions, "the subscriber's return before the device's")
            shutil.copy(long_video, film)
            device.limit_files(1000)
            device.hear("yard: ", "reopened")
            device.hear("late: ", "film.avi is open")
            device.hear("over: ", "files that this process may open")
            wait_until(lambda: bool(subscriber.messages("result/late")), "results of what began late")
            subscriber.wait_for(lambda _: len(_events(subscriber)) > before + 8, "events of meanwhile")
            seqs = [result["seq"] for result in documents(subscriber.messages("result/gate"))]
            assert device.stop() == 0
        wait_until(lambda: _are_whole(subscriber), "all events")
    assert seqs == sorted(set(seqs))
    assert not device.lines_with("bug")


def test_with_too_few_descriptors_from_the_start_it_is_tried_again(cell_bundle: Path, tmp_path: Path) -> None:
    """No process can be made that tries the bundle: that says nothing of the bundle."""
    few, state = ("prlimit", "--nofile=8:1000"), {"XDG_STATE_HOME": str(tmp_path)}
    done = edge_sdk("run", cell_bundle, "--source", HEALTHY["source"], before=few, **state)
    assert done.returncode == 1  # a service manager tries it again
    assert "no process can be started: Too many open files" in done.stderr.splitlines()[-1]
    config = write_at_ease(tmp_path, cell_bundle, _PIPELINES)
    with Device(config, before=few, environment=state) as device:
        for camera in _PIPELINES:
            device.hear(f"{camera}: ", "no process can be started: Too many open files", "begins again")
        device.limit_files(1000)
        for camera in _PIPELINES:
            device.run_on(camera)
        assert device.stop() == 0
    assert not device.lines_with("bug")


# A broker that does not take everything.


def test_an_acl_that_allows_too_little(cell_bundle: Path, blinking_video: Path, tmp_path: Path) -> None:
    ours = "edge/v1/default/pi"
    acl = ["topic read #", f"topic readwrite {ours}/status", f"topic readwrite {ours}/state"]
    with Broker(tmp_path, acl=acl) as broker, Subscriber(broker) as subscriber:
        tables: dict[str, Table] = {"mqtt": {"url": broker.url}, "publish.results": {"qos": 1}}
        config = write_blinking_config(tmp_path, cell_bundle, blinking_video, **tables)
        with Device(config, environment=own_folders(tmp_path)) as device:
            device.hear(f"did not take a message on {ours}/result/gate: Not authorized; its ACL must let this device")
            device.hear(f"the broker does not take events of {ours}/event/gate: Not authorized", "are tried again")
            (tmp_path / "acl").write_text("topic readwrite #\n")
            os.kill(broker.pid, signal.SIGHUP)
            subscriber.wait_for(lambda _: len(_events(subscriber)) > 2, "events")
            subscriber.wait_for(lambda _: len(subscriber.messages("result/gate")) > 2, "results")
            assert len(device.lines_with("did not take a message on")) == 1
            assert device.stop() == 0
        assert _are_whole(subscriber)


# The event outbox on a real file system, made in a file and mounted.

_SHUTDOWN, _LOSE_EVERYTHING = 0x8004587D, 2  # EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH


@contextmanager
def _mounted(folder: Path, image: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    if os.geteuid() != 0:
        not_allowed("only root may mount file systems")
    command = ["mount", "-o", "loop", str(image), str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        not_allowed(f"this machine mounts no file: {found.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _cut_power(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _LOSE_EVERYTHING))
    finally:
        os.close(descriptor)


def test_a_power_cut_in_the_middle_of_commits_takes_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    image, acknowledged = tmp_path / "image", list[int]()
    image.touch()
    os.truncate(image, 64_000_000)
    subprocess.run([require_program("mkfs.ext4"), "-q", str(image)], check=True)
    for cut in range(6):
        with _mounted(tmp_path / "disk", image) as folder:
            path = folder / "events.sqlite"
            with outbox_at(path) as outbox:
                assert outbox.waiting >= len(acknowledged)
                assert set(acknowledged) <= {event.seq for event in taken(outbox, outbox.waiting)}
                assert outbox.stats().set_aside == 0
                numbers, said = put(outbox, 3, size=300), [0]
                say_acknowledged(outbox, numbers, said.append)
                while said[-1] < numbers[0] + 100 + 17 * cut:
                    numbers += put(outbox, 3, size=300)
                    time.sleep(0.001)
                committed = said[-1]
                _cut_power(folder)  # everything after this, and whatever was not synced, never reaches the disk
                acknowledged += [number for number in numbers if number <= committed]


# Several cameras: what is broken is no trouble to the cameras beside it.


def test_four_cameras_share_two_cores(tmp_path: Path, broker: Broker) -> None:
    # Each one's convolutions cost some milliseconds a frame, of which a hundred come a second.
    bundles = [write_graded(tmp_path / f"{n}.edge", side=256 + 8 * n, width=32) for n in range(4)]
    cameras = {f"gate{n}": {"source": "pattern:320x240@100", "bundle": bundles[n]} for n in range(4)}
    defaults = {**AT_EASE, "best_effort": True, "variant": LARGE}
    config = write_config(tmp_path, config_text(cameras, mqtt={"url": broker.url}, defaults=defaults))
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    with Subscriber(broker) as subscriber, Device(config, before=["taskset", "-c", cores]) as device:
        wait_for_results(subscriber, device, cameras, 5)
        before = count_results(subscriber, cameras)
        wait_for_results(subscriber, device, cameras, 60)
        after = count_results(subscriber, cameras)
        assert device.stop() == 0, device.said
    assert not device.lines_with("Traceback")
    counts = [after[camera] - before[camera] for camera in cameras]
    # Jain's index: 1 where all have the same, 1/n where one has all.
    assert sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts)) >= 0.9, counts


def test_broken_cameras_are_no_trouble_to_the_others(tmp_path: Path, broker: Broker, cell_bundle: Path) -> None:
    healthy: dict[str, Table] = dict.fromkeys(("north", "east", "south"), HEALTHY)
    hangs, fails = write_real_bundle(tmp_path / "a.edge", endless()), write_real_bundle(tmp_path / "b.edge", failing())
    with http_server() as server:
        broken: dict[str, Table] = {
            "refuses": {"source": f"rtsp://127.0.0.1:{free_port()}/live"},
            "freezes": {"source": server.url()},
            "lacks": {**HEALTHY, "bundle": tmp_path / "none.edge"},
            "hangs": {**HEALTHY, "bundle": hangs, "run_limit_s": 0.5},
            "fails": {**HEALTHY, "bundle": fails},
        }
        words = {
            "refuses": "connection refused",
            "freezes": "lost: no frame for 2 s",
            "lacks": "is left out until the configuration is read again",
            "hangs": "a run did not finish within",
            "fails": "begins again in",
        }
        config = write_at_ease(tmp_path, cell_bundle, {**healthy, **broken}, mqtt={"url": broker.url})
        with Subscriber(broker) as subscriber, Device(config) as device:
            wait_for_results(subscriber, device, [*healthy, "freezes"])
            server.pause()
            for camera, said in words.items():
                device.hear(f"{camera}: ", said)
            wait_for_results(subscriber, device, healthy, 40)
            assert {status for status, _, _ in statuses(subscriber)} == {"online"}
            assert device.stop() == 0, device.said
            everything = [documents(subscriber.messages(f"/result/{camera}")) for camera in healthy]
    assert not device.lines_with("Traceback")
    assert len({result["run_id"] for of_camera in everything for result in of_camera}) == 1
    for of_camera in everything:
        numbers = [result["seq"] for result in of_camera]
        assert numbers == sorted(set(numbers)), "it began anew"


# Sources that come, go and cannot be opened.


def test_devices_that_are_not_there_no_cameras_or_in_use(cell_bundle: Path, tmp_path: Path) -> None:
    """A terminal that is held alone is what the kernel says EBUSY of."""
    holder, held = os.openpty()
    name = os.ttyname(held)
    sources = {"none": "/dev/no-such-camera", "null": "/dev/null", "held": name}
    config = write_at_ease(tmp_path, cell_bundle, {"yard": HEALTHY, **{c: {"source": s} for c, s in sources.items()}})
    fcntl.ioctl(held, termios.TIOCEXCL)
    # An administrator of the whole system would be let in.
    before = ("setpriv", "--bounding-set=-sys_admin", "--") if os.geteuid() == 0 else ()
    try:
        with Device(config, before=before) as device:
            device.hear("none: source /dev/no-such-camera: not there yet: no such device; it is waited for")
            device.hear("null: source /dev/null: not there yet: not a camera; it is waited for")
            device.hear(f"held: source {name}: not there yet: in use by another program; it is waited for")
            device.run_on("yard")
            fcntl.ioctl(held, termios.TIOCNXCL)
            device.hear("held: ", "not there yet: not a camera")
            assert device.stop() == 0
    finally:
        os.close(held)
        os.close(holder)
