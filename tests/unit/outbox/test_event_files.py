"""The event outbox over files that are damaged, in use, removed, moved or replaced while they are used."""

import importlib
import re
import resource
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from edge_sdk.outbox.event import Losses
from edge_sdk.outbox.store import STORE_VERSION
from tests.support.outboxes import WAIT_S, committed, delivered, log_of, outbox_at, put, taken, takes_all, until


def _flip(path: Path, start: int, stop: int) -> None:
    data = bytearray(path.read_bytes())
    for place in range(start, min(stop, len(data))):
        data[place] ^= 0xFF
    path.write_bytes(data)


def _mark_as_read_only(path: Path) -> None:
    with closing(sqlite3.connect(path)) as sql:
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    _flip(path, 18, 19)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "magic": lambda path: _flip(path, 0, 16),
    "mark of a file that may only be read": _mark_as_read_only,
    "first page": lambda path: _flip(path, 100, 4096),
    "middle": lambda path: _flip(path, path.stat().st_size // 2, path.stat().st_size // 2 + 6000),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a text": lambda path: path.write_text("this is no database\n" * 500),
    "empty": lambda path: path.write_bytes(b""),
    "log removed": lambda path: log_of(path).unlink(),
    "log flipped": lambda path: _flip(log_of(path), 0, 10**9),
    "log is a text": lambda path: log_of(path).write_text("no log\n" * 1000),
}


def _file_with(tmp_path: Path) -> tuple[Path, list[int]]:
    """As a kill leaves it: much in the file itself, the rest in its log."""
    path = tmp_path / "living" / "events.sqlite"
    with outbox_at(path) as outbox:
        numbers = [*committed(outbox, 3000, size=500), *committed(outbox, 50, size=500)]
        return Path(shutil.copytree(path.parent, tmp_path / "killed")) / path.name, numbers


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_costs_no_start_and_no_later_event(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path, before = _file_with(tmp_path)
    assert log_of(path).stat().st_size > 1000
    damage(path)
    said = list[tuple[str, str]]()
    with outbox_at(path, said=said) as outbox:
        numbers = committed(outbox, 100)
        assert outbox.stats().is_durable
        assert not set(numbers) & set(before)
        found: list[int] = []
        until(lambda: takes_all(outbox, found) and found[-1:] == numbers[-1:])
        assert found[-100:] == numbers
        rest = found[:-100]
        assert rest == sorted(set(rest) & set(before))  # in order, each once, and none that was never put
        if outbox.stats().set_aside:
            assert len(list(path.parent.glob("*.damaged"))) == 1
            assert said[0][0] == "outbox_damaged"
            assert f"{path} was damaged" in said[0][1]
        assert outbox.stats().lost == Losses(disk=len(before) - len(rest))


def test_a_file_that_is_damaged_while_it_is_used_is_replaced(tmp_path: Path) -> None:
    path, said = tmp_path / "events.sqlite", list[tuple[str, str]]()
    with outbox_at(path, said=said) as outbox:
        first = committed(outbox, 4000, size=500)
        taken(outbox, 10)
        _flip(path, 4096, path.stat().st_size)
        _flip(log_of(path), 0, 10**9)
        later = []
        for _ in range(200):
            later += committed(outbox, 20, size=500)
        rest: list[int] = []
        until(lambda: takes_all(outbox, rest) and outbox.waiting == 10 + len(rest))
        assert outbox.stats().set_aside >= 1
        assert rest == sorted(set(rest) & {*first, *later})
        assert rest[-1000:] == later[-1000:]
        assert outbox.stats().lost == Losses(disk=8000 - 10 - len(rest))
        assert outbox.stats().is_durable
    assert any(name == "outbox_damaged" for name, _ in said)


def test_of_files_that_were_put_aside_the_newest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    path.with_name("events.sqlite.damaged-wal").write_text("of another file")
    for number in range(3):
        path.write_text(f"no database {number}")
        with outbox_at(path) as outbox:
            put(outbox, 1)
            delivered(outbox, 1)
    assert sorted(p.name for p in tmp_path.glob("*damaged*")) == ["events.sqlite.damaged"]
    assert path.with_name("events.sqlite.damaged").read_text() == "no database 2"


def test_a_file_of_a_later_version_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    with closing(sqlite3.connect(path)) as sql:
        sql.execute(f"PRAGMA user_version = {STORE_VERSION + 1}")
    with outbox_at(path) as outbox:
        put(outbox, 1)
        delivered(outbox, 1)
    with closing(sqlite3.connect(path.with_name("events.sqlite.damaged"))) as sql:
        assert sql.execute("PRAGMA user_version").fetchone() == (STORE_VERSION + 1,)


def test_a_folder_that_is_named_is_made_once_the_one_above_it_is_there(tmp_path: Path) -> None:
    folder, said = tmp_path / "disk" / "waiting", list[tuple[str, str]]()
    with outbox_at(folder / "events.sqlite", said=said, folder=folder) as outbox:
        put(outbox, 1)
        until(lambda: f"{tmp_path / 'disk'}: no such folder; make it, or mount the disk" in str(said))
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "disk").touch()
        until(lambda: "disk is a file, name a folder" in said[-1][1])
        (tmp_path / "disk").unlink()
        (tmp_path / "disk").mkdir()
        assert outbox.wait_committed(WAIT_S)
        until(lambda: said[2:] == [("outbox_disk", "")])
    assert (folder / "events.sqlite").exists()


def test_without_a_descriptor_left_events_wait_in_memory_until_there_is_one(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with outbox_at(tmp_path / "events.sqlite", said=said) as outbox:
        importlib.import_module("edge_sdk.outbox.writer")  # while files can be opened
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            numbers = put(outbox, 20)
            assert not outbox.wait_committed(0.1)
            assert delivered(outbox, 5) == numbers[:5]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert outbox.wait_committed(WAIT_S)
        assert said[0][0] == "outbox_disk"
        assert "too many files are open; let this process open more: LimitNOFILE=" in said[0][1]
        assert delivered(outbox, 15) == numbers[5:]
        assert outbox.stats().lost.total == 0


def _mount_over(path: Path) -> None:
    path.parent.rename(path.parent.with_name("under"))
    path.parent.mkdir()


def _restore(path: Path) -> None:
    """An earlier copy of this file, beside which its log still lies."""
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def _garbage(path: Path) -> None:
    path.unlink()
    path.write_text("this is no database\n" * 500)


CHANGES: dict[str, Callable[[Path], object]] = {
    "removed": lambda path: [file.unlink() for file in list(path.parent.iterdir())],
    "removed but for its log": Path.unlink,
    "folder removed": lambda path: shutil.rmtree(path.parent),
    "mounted over": _mount_over,
    "restored": _restore,
    "garbage": _garbage,
    "log removed": lambda path: log_of(path).unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("is_soon", [True, False], ids=["noticed at the end", "noticed by a later event"])
def test_what_was_acknowledged_stays_so(tmp_path: Path, change: Callable[[Path], object], is_soon: bool) -> None:
    path, said, clock_s = tmp_path / "outbox" / "events.sqlite", list[tuple[str, str]](), [0.0]
    with outbox_at(path, said=said, now_s=lambda: clock_s[0]) as outbox:
        numbers = committed(outbox, 3000, size=500)
        assert delivered(outbox, 5) == numbers[:5]
        outbox.end_connection(is_orderly=True)
        change(path)
        numbers += committed(outbox, 10)
        if not is_soon:
            clock_s[0] += 2.0
            numbers += committed(outbox, 10)
            until(lambda: said != [])
            shutil.copytree(path.parent, tmp_path / "killed")
    [line] = [line for name, line in said if name == "outbox_damaged" and "while it was used" in line]
    assert re.search(rf"{path} was removed or replaced while it was used.*; 30[01]\d events were carried over", line)
    is_aside = change in (_restore, _garbage, CHANGES["log removed"])
    assert ("what was there instead is put aside as events.sqlite.replaced-1" in line) is is_aside
    assert path.with_name("events.sqlite.replaced-1").exists() is is_aside
    with outbox_at(path if is_soon else tmp_path / "killed" / path.name) as outbox:
        assert outbox.waiting == len(numbers) - 5
        assert delivered(outbox, len(numbers) - 5) == numbers[5:]
        assert outbox.stats().lost.total == 0


def test_files_that_took_its_place_are_all_kept(tmp_path: Path) -> None:
    path, clock_s = tmp_path / "events.sqlite", [0.0]
    with outbox_at(path, now_s=lambda: clock_s[0]) as outbox:
        for number in (1, 2):
            committed(outbox, 10)
            _garbage(path)
            clock_s[0] += 2.0
            committed(outbox, 1)
            until(path.with_name(f"events.sqlite.replaced-{number}").exists)
        assert outbox.stats().lost.total == 0


@pytest.mark.parametrize("is_moved_back", [True, False])
def test_where_no_other_file_can_be_made_that_is_said_and_tried_again(tmp_path: Path, is_moved_back: bool) -> None:
    path, said, clock_s = tmp_path / "outbox" / "events.sqlite", list[tuple[str, str]](), [0.0]
    with outbox_at(path, said=said, now_s=lambda: clock_s[0]) as outbox:
        numbers = committed(outbox, 1000, size=500)
        path.parent.rename(tmp_path / "away")
        path.parent.write_text("a file where the folder should be")
        clock_s[0] += 2.0
        while outbox.is_durable:  # a commit that was under way goes to the file that is away
            numbers += put(outbox, 1)
            outbox.wait_committed(0.05)
        numbers += put(outbox, 10)
        assert not outbox.wait_committed(0.05)
        assert said[0][0] == "outbox_disk"
        assert "File exists" in said[0][1]
        path.parent.unlink()
        if is_moved_back:
            (tmp_path / "away").rename(path.parent)
        assert outbox.wait_committed(WAIT_S)
        assert sorted(delivered(outbox, len(numbers))) == numbers
        assert outbox.stats().lost.total == 0
    assert ("outbox_disk", "") in said
    assert any(name == "outbox_damaged" for name, _ in said) is not is_moved_back


def test_what_could_not_be_carried_over_until_the_end_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "outbox" / "events.sqlite"
    with outbox_at(path) as outbox:
        committed(outbox, 100)
        shutil.rmtree(path.parent)
        path.parent.write_text("a file where the folder should be")
    assert outbox.stats().lost.disk == 100
    assert outbox.waiting == 0
