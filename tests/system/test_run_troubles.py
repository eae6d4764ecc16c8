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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.absent import not_allowed
from tests.support.broker import Broker, Subscriber, free_port, require_program, wait_until
from tests.support.bundles import LARGE, endless, failing, write_graded, write_real_bundle
from tests.support.configs import AT_EASE, HEALTHY, Table, config_text, write_at_ease, write_config
from tests.support.device import Device, count_results, own_folders, wait_for_results, write_blinking_config
from tests.support.outboxes import WAIT_S, delivered, outbox_at, put, say_acknowledged, taken, until
from tests.support.program import edge_sdk
from tests.support.streams import http_server, rtsp_server
from tests.support.subscribers import documents, statuses

pytestmark = pytest.mark.system

_STREAMS = {"gate": HEALTHY, "yard": HEALTHY}
_FULL = "No space left on device"
_TAKEN = 3  # as low as it goes: what is open stays open, and nothing more can be opened
_MANY = 1000


def _events(subscriber: Subscriber) -> list[dict[str, Any]]:
    return documents(subscriber.messages("event/gate"))


def _are_whole(subscriber: Subscriber) -> bool:
    seqs = list(dict.fromkeys(event["seq"] for event in _events(subscriber)))
    return seqs == list(range(seqs[0], seqs[0] + len(seqs)))


# File systems that only the programs of one test see, in a mount namespace of their own.

_DISK_KB = 1024


class _Mounts:
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

    def __enter__(self) -> _Mounts:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def within(self) -> tuple[str, ...]:
        return (shutil.which("nsenter") or "nsenter", "-m", "-t", str(self._holder.pid), "--")

    def path(self, path: Path) -> Path:
        """Where that which is there under this path is from outside."""
        return Path(f"/proc/{self._holder.pid}/root") / path.relative_to("/")

    def files(self, folder: Path) -> dict[str, int]:
        root = self.path(folder)
        return {str(p.relative_to(root)): p.stat().st_size for p in sorted(root.rglob("*")) if p.is_file()}

    def _end(self) -> None:
        self._holder.communicate()


def _full_disk(folder: Path, room_kb: int = 0) -> _Mounts:
    """A disk of a megabyte at `folder`, full but for so much; what fills it is the file `fill`."""
    folder.mkdir()
    fill = f"head -c {(_DISK_KB - room_kb) * 1024} /dev/zero > {folder}/fill"
    return _Mounts(f"mount -t tmpfs -o size={_DISK_KB}k tmpfs {folder} && {fill}")


def _read_only(*folders: Path) -> _Mounts:
    """Nothing can be written: not to these folders, nor where programs put what they need for a while."""
    places = {*map(str, folders), "/tmp", "/var/tmp", "/usr/tmp", tempfile.gettempdir(), str(Path.cwd())}
    bound = "for d in {}; do [ ! -d $d ] || {{ mount --rbind $d $d && mount -o remount,bind,ro $d; }} || exit 1; done"
    return _Mounts("mount -o remount,bind,ro / && " + bound.format(" ".join(sorted(places))))


# A disk that is full.


def test_on_a_full_disk_the_streams_run(cell_bundle: Path, broker: Broker, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    config = write_at_ease(tmp_path, cell_bundle, _STREAMS, mqtt={"url": broker.url})
    with (
        _full_disk(disk) as mounts,
        Subscriber(broker) as subscriber,
        Device(config, before=mounts.within, environment={"XDG_STATE_HOME": str(disk)}) as device,
    ):
        line = device.hear("gate: that the bundle was tried cannot be remembered")
        assert line.endswith(_FULL)
        device.hear("warning: the disk is nearly full: 0 MB are free of 1; make room")
        for camera in _STREAMS:
            subscriber.wait_for(
                lambda _, topic=f"result/{camera}": len(subscriber.messages(topic)) > 10, f"results of {camera}"
            )
        subscriber.wait_for(
            lambda _: any("disk" in state.get("warnings", {}) for state in documents(subscriber.messages("/state"))),
            "a state with the warning",
        )
        subscriber.wait_for(lambda _: bool(subscriber.messages("/telemetry")), "telemetry")
        assert documents(subscriber.messages("/telemetry"))[0]["disk_free_mb"] == 0
        assert device.stop() == 0
        left = [name for name in mounts.files(disk) if name != "fill" and not name.endswith(".lock")]
        assert left == []  # not even a part of a record; the lock of the device's name has no content
    assert not device.lines_with("bug")


def test_where_nothing_at_all_can_be_written_it_runs(cell_bundle: Path, tmp_path: Path) -> None:
    """As on a card that failed: no folder for a while, either, in which a new bundle could be tried."""
    config = write_at_ease(tmp_path, cell_bundle, _STREAMS)
    with (
        _read_only(tmp_path) as mounts,
        Device(config, before=mounts.within, environment={"XDG_STATE_HOME": str(tmp_path / "state")}) as device,
    ):
        device.hear("gate: that the bundle was tried cannot be remembered", "Read-only file system")
        for camera in _STREAMS:
            device.run_on(camera)
        assert device.stop() == 0
    assert not (tmp_path / "state").exists()
    assert not device.lines_with("bug")


def test_results_in_a_file_end_with_a_whole_line(cell_bundle: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    config = write_at_ease(tmp_path, cell_bundle, _STREAMS)
    with _full_disk(disk, room_kb=16) as mounts:
        with mounts.path(disk / "results").open("wb") as results:
            device = Device(config, before=mounts.within, stdout=results.fileno())
        with device:
            assert device.end() == 1
        lines = mounts.path(disk / "results").read_bytes().splitlines(keepends=True)
    assert device.said[-1] == f"edge-sdk: results cannot be written: {_FULL}"
    assert len(lines) > 10
    assert all(line.endswith(b"\n") and msgspec.json.decode(line) for line in lines)


@pytest.mark.parametrize("is_buffered", [True, False])
def test_words_for_people_that_cannot_be_written_end_nothing_and_what_was_asked_for_is_said(
    cell_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_buffered: bool
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "" if is_buffered else "1")
    config = write_at_ease(tmp_path, cell_bundle, {"gate": HEALTHY})
    with Path("/dev/full").open("wb") as full:
        with Device(config, stderr=full.fileno()) as device:
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
        streams = {"gate": {"source": blinking_video}, "yard": {"source": server.url()}, "late": {"source": film}}
        defaults = {**AT_EASE, "bundle": cell_bundle}
        text = config_text(streams, mqtt={"url": broker.url}, defaults=defaults)
        config = write_config(tmp_path, f'{text}\n[[events]]\nlabels = ["red", "blue"]\ndisappear_s = 0\n')
        with Subscriber(broker) as subscriber, Device(config, environment=own_folders(tmp_path)) as device:
            device.hear("late: ", "no such file or folder", "begins again")
            wait_until(lambda: len(subscriber.messages("result/yard")) > 5, "results of both")
            subscriber.wait_for(lambda _: len(_events(subscriber)) > 2, "events")
            device.limit_files(_TAKEN)
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
            device.limit_files(_MANY)
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
    few, state = ("prlimit", f"--nofile=8:{_MANY}"), {"XDG_STATE_HOME": str(tmp_path)}
    done = edge_sdk("run", cell_bundle, "--source", HEALTHY["source"], before=few, **state)
    assert done.returncode == 1  # a service manager tries it again
    assert "no process can be started: Too many open files" in done.stderr.splitlines()[-1]
    config = write_at_ease(tmp_path, cell_bundle, _STREAMS)
    with Device(config, before=few, environment=state) as device:
        for camera in _STREAMS:
            device.hear(f"{camera}: ", "no process can be started: Too many open files", "begins again")
        device.limit_files(_MANY)
        for camera in _STREAMS:
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
            device.hear(
                f"did not take a message on {ours}/result/gate: Not authorized; its ACL must let this device write "
                f"below {ours}/"
            )
            device.hear(
                "warning: broker 127.0.0.1",
                f"the broker does not take events of {ours}/event/gate: Not authorized",
                "they wait and are tried again, allow this device to write it in the broker's ACL",
            )
            (tmp_path / "acl").write_text("topic readwrite #\n")
            os.kill(broker.pid, signal.SIGHUP)
            subscriber.wait_for(lambda _: len(_events(subscriber)) > 2, "events")
            subscriber.wait_for(lambda _: len(subscriber.messages("result/gate")) > 2, "results")
            assert len(device.lines_with("did not take a message on")) == 1
            assert device.stop() == 0
        assert _are_whole(subscriber)


# The event outbox on real file systems, made in files and mounted: a power cut, and a full one.

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_LOSE_EVERYTHING = 2  # EXT4_GOING_FLAGS_NOLOGFLUSH: what was not synced is gone


@contextmanager
def _mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    if os.geteuid() != 0:
        not_allowed("only root may mount file systems")
    found = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True, check=False)
    if found.returncode:
        not_allowed(f"this machine mounts no {arguments}: {found.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _ext4(tmp_path: Path) -> Path:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(64_000_000)
    subprocess.run([require_program("mkfs.ext4"), "-q", str(image)], check=True)
    return image


def _cut_power(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _LOSE_EVERYTHING))
    finally:
        os.close(descriptor)


def test_a_power_cut_in_the_middle_of_commits_takes_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    image = _ext4(tmp_path)
    acknowledged: list[int] = []
    for cut in range(6):
        with _mounted(tmp_path / "disk", "-o", "loop", str(image)) as folder:
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


def test_a_full_disk_is_said_once_and_used_again_when_there_is_room(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    with _mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=600k", "none") as folder:
        other = folder / "other"
        with outbox_at(folder / "events.sqlite", said=said, max_mb=2, max_memory_bytes=400_000) as outbox:
            numbers = put(outbox, 200, size=500)
            assert outbox.wait_committed(WAIT_S)
            _fill(other)
            while outbox.is_durable:
                numbers += put(outbox, 50, size=500)
                time.sleep(0.01)
            numbers += put(outbox, 50, size=500)
            assert not outbox.wait_committed(0.1)
            assert delivered(outbox, 300) == numbers[:300]  # what was on disk, then from memory, in order
            until(lambda: len(said) == 1)
            name, line = said[0]
            assert name == "outbox_disk"
            assert "disk is full; free some space on this disk" in line
            other.unlink()
            assert outbox.wait_committed(WAIT_S)
            until(lambda: said[1:] == [("outbox_disk", "")])
            assert delivered(outbox, len(numbers) - 300) == numbers[300:]
            assert outbox.stats().lost.total == 0


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


# Several cameras: what is broken is no trouble to the cameras beside it.


_CORES = 2
_FAIREST = 0.9
_AS_IS = {**AT_EASE, "best_effort": True}


def _on_two_cores(config: Path) -> Device:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:_CORES]))
    try:
        return Device(config)
    finally:
        os.sched_setaffinity(0, before)


def test_four_cameras_share_two_cores(tmp_path: Path, broker: Broker) -> None:
    # Each one's convolutions cost some milliseconds a frame, of which a hundred come a second.
    cameras: dict[str, Table] = {
        f"gate{n}": {
            "source": "pattern:320x240@100",
            "bundle": str(write_graded(tmp_path / f"{n}.edge", side=256 + 8 * n, width=32)),
        }
        for n in range(4)
    }
    defaults = {**_AS_IS, "variant": LARGE}
    config = write_config(tmp_path, config_text(cameras, mqtt={"url": broker.url}, defaults=defaults))
    with Subscriber(broker) as subscriber, _on_two_cores(config) as device:
        wait_for_results(subscriber, device, cameras, 5)
        before = count_results(subscriber, cameras)
        wait_for_results(subscriber, device, cameras, 60)
        after = count_results(subscriber, cameras)
        assert device.stop() == 0, device.said
    assert not device.lines_with("Traceback")
    counts = [after[camera] - before[camera] for camera in cameras]
    # Jain's index: 1 where all have the same, 1/n where one has all.
    assert sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts)) >= _FAIREST, counts


def test_broken_cameras_are_no_trouble_to_the_others(tmp_path: Path, broker: Broker, cell_bundle: Path) -> None:
    healthy: dict[str, Table] = dict.fromkeys(("north", "east", "south"), HEALTHY)
    hangs = write_real_bundle(tmp_path / "hangs.edge", endless())
    fails = write_real_bundle(tmp_path / "fails.edge", failing())
    with http_server() as server:
        broken: dict[str, Table] = {
            "refuses": {"source": f"rtsp://127.0.0.1:{free_port()}/live"},
            "freezes": {"source": server.url()},
            "lacks": {**HEALTHY, "bundle": str(tmp_path / "none.edge")},
            "hangs": {**HEALTHY, "bundle": str(hangs), "run_limit_s": 0.5},
            "fails": {**HEALTHY, "bundle": str(fails)},
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
