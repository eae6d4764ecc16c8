"""The event outbox on real file systems: a power cut, a full one, one that can only be read, and back.

They are made in files and mounted, which takes root.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_sdk.publishing.durable import EventOutbox
from tests.support.absent import not_allowed
from tests.support.broker import require_program
from tests.support.outboxes import WAIT_S, delivered, outbox_at, put, taken, until

pytestmark = pytest.mark.system

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_LOSE_EVERYTHING = 2  # EXT4_GOING_FLAGS_NOLOGFLUSH: what was not synced is gone


@contextmanager
def _mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    if os.geteuid() != 0:
        not_allowed("only root may mount file systems; test_event_kills replays what was synced")
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
                numbers: list[int] = []
                until_s = time.monotonic() + 0.3 + 0.07 * cut
                while time.monotonic() < until_s:
                    numbers += put(outbox, 3, size=300)
                    time.sleep(0.001)
                committed = outbox.committed_seq("door")
                _cut_power(folder)  # everything after this, and whatever was not synced, never reaches the disk
                assert committed is not None
                acknowledged += [number for number in numbers if number <= committed]
    assert len(acknowledged) > 500


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


def test_a_damaged_file_on_a_full_disk_stays_until_there_is_room_for_what_it_has(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    with _mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=1500k", "none") as folder:
        path, other = folder / "events.sqlite", folder / "other"
        with outbox_at(path) as outbox:
            numbers = put(outbox, 800, size=500)
        with path.open("r+b") as file:
            file.seek(40 * 4096)
            file.write(bytes(2 * 4096))
        _fill(other)
        with outbox_at(path, said=said) as outbox:
            numbers += put(outbox, 10)
            for _ in range(5):  # it is tried again every few milliseconds
                assert not outbox.wait_committed(0.1)
                assert not list(folder.glob("*.damaged*"))
            assert [name for name, _ in said] == ["outbox_disk"]
            assert "free some space on this disk" in said[0][1]
            other.unlink()
            assert outbox.wait_committed(WAIT_S)
            waiting = outbox.waiting
            assert 770 < waiting < 810
            assert set(delivered(outbox, waiting)) <= set(numbers)
            stats = outbox.stats()
            assert (stats.lost.total, stats.set_aside) == (stats.lost.disk, 1)
            assert stats.lost.disk == 810 - waiting


def test_a_disk_that_stays_full_costs_the_oldest_of_what_is_in_memory(tmp_path: Path) -> None:
    with _mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=300k", "none") as folder:
        _fill(folder / "other")
        with outbox_at(folder / "events.sqlite", max_memory_bytes=1_000_000) as outbox:
            numbers = put(outbox, 1000, size=10_000)
            found: list[int] = []
            until(lambda: _take(outbox, found) and found[-1:] == numbers[-1:])
            assert found == sorted(found)
            assert len(found) < 300
            assert outbox.stats().lost.memory == 1000 - len(found)


def test_a_disk_that_can_only_be_read_is_read_and_written_again_when_it_can_be(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    image = _ext4(tmp_path)
    with _mounted(tmp_path / "disk", "-o", "loop", str(image)) as folder:
        path = folder / "events.sqlite"
        with outbox_at(path) as outbox:
            numbers = put(outbox, 2000)
        _remount(folder, "ro")
        with outbox_at(path, said=said) as outbox:
            numbers += put(outbox, 10)
            assert not outbox.wait_committed(0.1)
            until(lambda: len(said) == 1)
            assert "mount this disk for writing" in said[0][1]
            assert path.exists()
            assert not list(folder.glob("*.damaged*"))
            _remount(folder, "rw")
            assert outbox.wait_committed(WAIT_S)
            until(lambda: said[1:] == [("outbox_disk", "")])
            assert sorted(delivered(outbox, 2010)) == sorted(numbers)
            assert outbox.stats().lost.total == 0


def test_a_disk_that_fails_while_it_is_used(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    image = _ext4(tmp_path)
    with _mounted(tmp_path / "disk", "-o", "loop", str(image)) as folder, _outbox(folder, said) as outbox:
        numbers = put(outbox, 3000)
        assert outbox.wait_committed(WAIT_S)
        _cut_power(folder)
        numbers += put(outbox, 20)
        until(lambda: len(said) == 1)
        assert "look after this disk" in said[0][1]
        # What is on that disk cannot be read; what is in memory arrives, in order.
        found: list[int] = []
        until(lambda: _take(outbox, found) and found[-1:] == numbers[-1:])
        assert found == sorted(found)
        assert found[-20:] == numbers[-20:]
        assert outbox.waiting >= 3000 - len(found)


@contextmanager
def _outbox(folder: Path, said: list[tuple[str, str]]) -> Iterator[EventOutbox]:
    with outbox_at(folder / "events.sqlite", said=said) as outbox:
        yield outbox


def _take(outbox: EventOutbox, numbers: list[int]) -> bool:
    while (event := outbox.take()) is not None:
        numbers.append(event.seq)
        outbox.deliver(event)
    return True


def _remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
