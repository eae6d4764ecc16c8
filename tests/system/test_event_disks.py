"""The event outbox on real file systems: a power cut, and a full one.

They are made in files and mounted, which takes root.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.absent import not_allowed
from tests.support.broker import require_program
from tests.support.outboxes import WAIT_S, delivered, outbox_at, put, say_acknowledged, taken, until

pytestmark = pytest.mark.system

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
