"""The event outbox over files that are damaged, of another program, or in use."""

from __future__ import annotations

import importlib
import resource
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_sdk.publishing.durable import EventOutbox, Held, Losses
from edge_sdk.publishing.durable.store import VERSION, EventStore
from tests.support.outboxes import WAIT_S, delivered, outbox_at, put, taken, until


def _flip(path: Path, start: int, stop: int) -> None:
    data = bytearray(path.read_bytes())
    for place in range(start, min(stop, len(data))):
        data[place] ^= 0xFF
    path.write_bytes(data)


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "magic": lambda path: _flip(path, 0, 16),
    "page size": lambda path: _flip(path, 16, 18),
    "version that may be written": lambda path: _flip(path, 18, 19),
    "schema format": lambda path: _flip(path, 44, 48),
    "user version": lambda path: _flip(path, 60, 64),
    "first page": lambda path: _flip(path, 100, 4096),
    "middle": lambda path: _flip(path, path.stat().st_size // 2, path.stat().st_size // 2 + 6000),
    "last page": lambda path: _flip(path, path.stat().st_size - 4096, path.stat().st_size),
    "half of it": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a part of a page": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a text": lambda path: path.write_text("this is no database\n" * 500),
    "empty": lambda path: path.write_bytes(b""),
    "log removed": lambda path: _log(path).unlink(),
    "log flipped": lambda path: _flip(_log(path), 0, 10**9),
    "log half": lambda path: _log(path).write_bytes(_log(path).read_bytes()[: _log(path).stat().st_size // 2]),
    "log of zeros": lambda path: _log(path).write_bytes(bytes(_log(path).stat().st_size)),
    "log is a text": lambda path: _log(path).write_text("no log\n" * 1000),
}


def _file_with(tmp_path: Path, count: int) -> tuple[Path, list[int]]:
    """As a kill leaves it: much in the file itself, the rest in its log."""
    path = tmp_path / "living" / "events.sqlite"
    with outbox_at(path) as outbox:
        numbers = put(outbox, count, size=500)
        assert outbox.wait_committed(WAIT_S)
        numbers += put(outbox, 50, size=500)
        assert outbox.wait_committed(WAIT_S)
        copy = tmp_path / "killed"
        shutil.copytree(path.parent, copy)
    return copy / path.name, numbers


def _takes_all(outbox: EventOutbox, numbers: list[int]) -> bool:
    while (event := outbox.take()) is not None:
        numbers.append(event.seq)
    return True


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_costs_no_start_and_no_later_event(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path, before = _file_with(tmp_path, 3000)
    assert _log(path).stat().st_size > 1000
    damage(path)
    said: list[tuple[str, str]] = []
    with outbox_at(path, said=said) as outbox:
        numbers = put(outbox, 100)
        assert outbox.wait_committed(WAIT_S)
        assert outbox.stats().is_durable
        assert not set(numbers) & set(before)
        found: list[int] = []
        until(lambda: _takes_all(outbox, found) and found[-1:] == numbers[-1:])
        assert found[-100:] == numbers
        rest = found[:-100]
        assert rest == sorted(set(rest) & set(before))  # in order, each once, and none that was never put
        if outbox.stats().set_aside:
            assert len(list(path.parent.glob("*.damaged-1"))) == 1
            assert said[0][0] == "outbox_damaged"
            assert f"{path} was damaged" in said[0][1]
        assert outbox.stats().lost == Losses(disk=len(before) - len(rest))


def test_what_can_be_read_of_a_damaged_file_is_sent(tmp_path: Path) -> None:
    path, before = _file_with(tmp_path, 3000)
    DAMAGES["middle"](path)
    with outbox_at(path) as outbox:
        assert outbox.stats().set_aside == 1
        waiting = outbox.waiting
        assert 2500 < waiting < len(before)
        assert set(delivered(outbox, waiting)) < set(before)


def test_a_payload_that_changed_on_disk_is_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path) as outbox:
        numbers = put(outbox, 30)
    data = path.read_bytes()
    place = data.index(b'{"seq":%d}' % numbers[7])
    path.write_bytes(data[: place + 2] + b"S" + data[place + 3 :])
    with outbox_at(path) as outbox:
        assert delivered(outbox, 29) == numbers[:7] + numbers[8:]
        assert outbox.stats().lost == Losses(disk=1)
        assert outbox.waiting == 0


def test_damage_that_is_found_by_reading_lets_what_comes_meanwhile_wait_for_no_other_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_after, is_damaged = EventStore.read_after, threading.Event()
    with outbox_at(tmp_path / "events.sqlite") as outbox:

        def damaged_once(store: EventStore, *arguments: int) -> tuple[list[Held], int, int]:
            if not is_damaged.is_set():
                put(outbox, 20)
                is_damaged.set()
                raise sqlite3.DatabaseError("database disk image is malformed")
            return read_after(store, *arguments)

        put(outbox, 1000)  # more than wait in memory
        assert outbox.wait_committed(WAIT_S)
        monkeypatch.setattr(EventStore, "read_after", damaged_once)
        for event in taken(outbox, 500):
            outbox.deliver(event)
        until(is_damaged.is_set)
        assert outbox.wait_committed(WAIT_S)


def test_a_file_that_is_damaged_while_it_is_used_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    said: list[tuple[str, str]] = []
    with outbox_at(path, said=said) as outbox:
        first = put(outbox, 4000, size=500)
        assert outbox.wait_committed(WAIT_S)
        taken(outbox, 10)
        _flip(path, 4096, path.stat().st_size)
        _flip(_log(path), 0, 10**9)
        later = []
        for _ in range(200):
            later += put(outbox, 20, size=500)
            assert outbox.wait_committed(WAIT_S)
        rest: list[int] = []
        until(lambda: _takes_all(outbox, rest) and outbox.waiting == 10 + len(rest))
        assert outbox.stats().set_aside >= 1
        assert rest == sorted(set(rest) & {*first, *later})
        assert rest[-1000:] == later[-1000:]
        assert outbox.stats().lost == Losses(disk=8000 - 10 - len(rest))
        assert outbox.stats().is_durable
    assert any(name == "outbox_damaged" for name, _ in said)


def test_of_files_that_were_put_aside_the_newest_two_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    for _ in range(4):
        path.write_text("no database")
        with outbox_at(path) as outbox:
            put(outbox, 1)
            delivered(outbox, 1)
    assert sorted(p.name for p in tmp_path.glob("*damaged*")) == ["events.sqlite.damaged-3", "events.sqlite.damaged-4"]


def test_a_file_of_a_later_version_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    sql = sqlite3.connect(path)
    sql.execute(f"PRAGMA user_version = {VERSION + 1}")
    sql.close()
    with outbox_at(path) as outbox:
        put(outbox, 1)
        delivered(outbox, 1)
    sql = sqlite3.connect(path.with_name("events.sqlite.damaged-1"))
    assert sql.execute("PRAGMA user_version").fetchone() == (VERSION + 1,)
    sql.close()


def test_a_folder_that_is_named_is_made_once_the_one_above_it_is_there(tmp_path: Path) -> None:
    folder, said = tmp_path / "disk" / "waiting", list[tuple[str, str]]()
    with outbox_at(folder / "events.sqlite", said=said, folder=folder) as outbox:
        put(outbox, 1)
        want = "no such folder; make it, or mount the disk that has it"
        until(lambda: said == [("outbox_disk", f"events wait in memory only: {tmp_path / 'disk'}: {want}")])
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "disk").touch()
        until(
            lambda: (
                said[1:]
                == [("outbox_disk", f"events wait in memory only: {tmp_path / 'disk'} is a file, name a folder")]
            )
        )
        (tmp_path / "disk").unlink()
        (tmp_path / "disk").mkdir()
        assert outbox.wait_committed(WAIT_S)
        until(lambda: said[2:] == [("outbox_disk", "")])
    assert (folder / "events.sqlite").exists()


def test_two_programs_never_use_one_file(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    said: list[tuple[str, str]] = []
    with outbox_at(path) as first:
        mine = put(first, 10)
        assert first.wait_committed(WAIT_S)
        with outbox_at(path, said=said) as second:
            others = put(second, 10)
            assert not second.wait_committed(0.05)
            assert delivered(second, 4) == others[:4]  # from memory
            assert [name for name, _ in said] == ["outbox_disk"]
            assert "another program uses this file; give each its own device name (--device, device=)" in said[0][1]
            first.close()
            assert second.wait_committed(WAIT_S)  # it has the file now, and what the first had not sent
            until(lambda: said[1:] == [("outbox_disk", "")])
            assert sorted(delivered(second, 16)) == sorted(mine + others[4:])
            assert second.stats().lost.total == 0


def test_without_a_descriptor_left_events_wait_in_memory_until_there_is_one(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with outbox_at(tmp_path / "events.sqlite", said=said) as outbox:
        importlib.import_module("edge_sdk.publishing.durable.writer")  # while files can be opened

        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            numbers = put(outbox, 20)
            assert not outbox.wait_committed(0.1)
            assert delivered(outbox, 5) == numbers[:5]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert outbox.wait_committed(WAIT_S)
        name, line = said[0]
        assert name == "outbox_disk"
        assert "too many files are open; let this process open more: LimitNOFILE=" in line
        assert delivered(outbox, 15) == numbers[5:]
        assert outbox.stats().lost.total == 0
