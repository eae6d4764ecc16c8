"""No acknowledged event is lost while the broker and the device are killed at random."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_sdk.publishing import OutboxSettings
from tests.support.broker import Broker, wait_until
from tests.support.event_device import DEVICE
from tests.support.outboxes import outbox_at, taken
from tests.support.subscribers import PERSISTENT, KillableDevice, Witness, kill_at_random

pytestmark = pytest.mark.system

SECONDS = 20.0
"""At 200 events a second; `python -m benchmarks.events kills` does the same for a minute."""
_NOBODY = 9  # a port at which no broker listens


def test_kills_in_the_middle_of_commits_leave_all_that_was_acknowledged_in_the_file(tmp_path: Path) -> None:
    """A kill leaves what was written and not synced; the next test takes that away, as test_event_disks does."""
    rng = random.Random(11)
    device = KillableDevice(_NOBODY, tmp_path, rate=500.0)
    for _ in range(4):
        device.start()
        time.sleep(rng.uniform(0.1, 0.6))
        device.kill()
    with outbox_at(OutboxSettings(folder=tmp_path).path_of("default", DEVICE)) as outbox:
        assert device.acknowledged <= {event.seq for event in taken(outbox, outbox.waiting)}
        assert outbox.stats().set_aside == 0
    assert len(device.acknowledged) > 100


def _strace_works() -> bool:
    try:
        return (
            subprocess.run(["strace", "-D", "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


@pytest.mark.skipif(not _strace_works(), reason="strace is not installed, or may not look at a child here")
def test_what_was_synced_before_a_power_cut_holds_all_that_was_acknowledged(tmp_path: Path) -> None:
    """Where nobody may cut the power of a file system: what was written and not synced is taken away, at each word."""
    path = OutboxSettings(folder=tmp_path / "outbox").path_of("default", DEVICE)
    trace = tmp_path / "trace"
    strace = ("strace", "-D", "-f", "-y", "-xx", "-s", "1000000", "-e", TRACED, "-o", str(trace))
    device = KillableDevice(_NOBODY, path.parent, rate=100.0, before=strace)
    device.start()
    wait_until(lambda: len(device.acknowledged) > 200, "acknowledged events")
    device.kill()
    disk, first, looked = RecordedDisk(path.parent), 0, 0
    for number, said in enumerate(disk.replay(trace.read_text())):
        word, _, last = said.strip().partition(" ")
        first = int(last) if word == "first" else first
        if word != "committed" or not last.isdecimal() or number % 5:
            continue
        disk.leave(tmp_path / f"cut{number}")
        with outbox_at(tmp_path / f"cut{number}" / path.name) as outbox:
            assert set(range(first, int(last) + 1)) <= {event.seq for event in taken(outbox, outbox.waiting)}
            assert outbox.stats().set_aside == 0
        looked += 1
    assert looked > 5


def test_kills_of_broker_and_device_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    seed = int(os.environ.get("KILLS_SEED", 0)) or random.randrange(1, 2**32)
    sys.stdout.write(f"KILLS_SEED={seed}\n")
    with (
        Broker(tmp_path, persistence=True, config=PERSISTENT) as broker,
        Witness(broker) as witness,
    ):
        device = KillableDevice(broker.port, tmp_path / "outbox")
        device.start()
        killed = kill_at_random(broker, device, witness, SECONDS, seed)
        device.kill()
        device.start(rate=1.0)  # it brings what the ones before had on disk
        acknowledged = set(device.acknowledged)
        wait_until(lambda: acknowledged <= witness.numbers, "every acknowledged event")
        device.kill()
        assert min(killed) > 0, killed
        assert len(acknowledged) > 20 * SECONDS
        assert not witness.conflicts  # what came twice was the same each time: its number tells


# A recording of what a process writes and syncs, and the files that a power cut would have left of it.

TRACED = "trace=pwrite64,write,fsync,fdatasync,ftruncate,unlink"
"""For `strace -f -y -xx -e`; all of a write must be recorded, `-s 100000`."""

_CALL = re.compile(r'\d+ +(?P<call>\w+)\((?P<fd>\d+)<(?P<path>[^>]*)>(?:, "(?P<data>[^"]*)")?(?P<rest>.*)')
_UNLINK = re.compile(r'\d+ +unlink\("(?P<path>[^"]*)"\) += 0')
_UNFINISHED = re.compile(r"(?P<pid>\d+) +(?P<begin>.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"(?P<pid>\d+) +<\.\.\. \w+ resumed>(?P<end>.*)")


class RecordedDisk:
    """Replays a trace."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, bytearray] = {}
        self._synced: dict[str, bytes] = {}

    def replay(self, trace: str) -> Iterator[str]:
        """What went to standard output, piece by piece; between two the disk is as it was then."""
        for line in _whole_calls(trace):
            removed, found = _UNLINK.fullmatch(line), _CALL.fullmatch(line)
            if removed is not None:
                self._remove(Path(_text(removed["path"])))
            if found is None:
                continue
            data = _bytes(found["data"] or "")
            if found["fd"] == "1" and found["call"] == "write":
                yield data.decode()
            path = Path(_text(found["path"]))
            if path.parent == self._folder:
                self._apply(found["call"], path.name, data, found["rest"])

    def leave(self, folder: Path) -> None:
        """Write what a power cut now would leave."""
        folder.mkdir()
        for name, content in self._synced.items():
            (folder / name).write_bytes(content)

    def _remove(self, path: Path) -> None:
        if path.parent == self._folder:
            self._written.pop(path.name, None)
            self._synced.pop(path.name, None)

    def _apply(self, call: str, name: str, data: bytes, rest: str) -> None:
        content = self._written.setdefault(name, bytearray())
        if call == "pwrite64":
            offset = int(rest.split(",")[2].rstrip(")").split(")")[0])
            content.extend(bytes(max(0, offset + len(data) - len(content))))
            content[offset : offset + len(data)] = data
        elif call == "ftruncate":
            del content[int(rest.split(",")[1].split(")")[0]) :]
        elif call in ("fsync", "fdatasync"):
            self._synced[name] = bytes(content)


def _whole_calls(trace: str) -> Iterator[str]:
    """Calls in the order in which they returned; writes that had begun before a sync ended count as before it."""
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        if unfinished := _UNFINISHED.fullmatch(line):
            begun[unfinished["pid"]] = f"{unfinished['pid']} {unfinished['begin']}"
        elif resumed := _RESUMED.fullmatch(line):
            yield begun.pop(resumed["pid"], "") + resumed["end"]
        else:
            yield line


def _bytes(shown: str) -> bytes:
    return bytes.fromhex(shown.replace("\\x", ""))


def _text(shown: str) -> str:
    return _bytes(shown).decode() if shown.startswith("\\x") else shown
