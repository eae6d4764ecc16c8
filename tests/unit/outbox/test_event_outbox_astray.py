"""The event outbox over a file that somebody removes, moves or replaces while it is used."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_sdk.publishing.durable import EventOutbox, Losses
from tests.support.outboxes import WAIT_S, delivered, outbox_at, put, taken, until


def _remove(path: Path) -> None:
    for name in list(path.parent.iterdir()):
        name.unlink()


def _remove_all_but_the_log(path: Path) -> None:
    path.unlink()


def _remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


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


CHANGES: dict[str, Callable[[Path], None]] = {
    "removed": _remove,
    "removed but for its log": _remove_all_but_the_log,
    "folder removed": _remove_folder,
    "mounted over": _mount_over,
    "restored": _restore,
    "garbage": _garbage,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("is_soon", [True, False], ids=["noticed at the end", "noticed by a later event"])
def test_what_was_acknowledged_stays_so(tmp_path: Path, change: Callable[[Path], None], is_soon: bool) -> None:
    path = tmp_path / "outbox" / "events.sqlite"
    said: list[tuple[str, str]] = []
    clock_s = [0.0]
    with outbox_at(path, said=said, now_s=lambda: clock_s[0]) as outbox:
        numbers = put(outbox, 3000, size=500)
        assert outbox.wait_committed(WAIT_S)
        assert delivered(outbox, 5) == numbers[:5]
        outbox.end_connection(is_orderly=True)
        change(path)
        numbers += put(outbox, 10)
        assert outbox.wait_committed(WAIT_S)
        if not is_soon:
            clock_s[0] += 2.0
            numbers += put(outbox, 10)
            assert outbox.wait_committed(WAIT_S)
            until(lambda: said != [])
            shutil.copytree(path.parent, tmp_path / "killed")
    lines = [line for name, line in said if name == "outbox_damaged" and "while it was used" in line]
    assert len(lines) == 1
    assert f"{path} was removed or replaced while it was used" in lines[0]
    [carried] = re.findall(r"; (\d+) events were carried over", lines[0])
    assert 0 < int(carried) <= 3015
    assert (int(carried) < 3000) is (change is _restore)  # most of them are in the copy already
    with outbox_at(path if is_soon else tmp_path / "killed" / path.name) as outbox:
        assert outbox.waiting == len(numbers) - 5
        assert delivered(outbox, len(numbers) - 5) == numbers[5:]
        assert outbox.stats().lost.total == 0


def _deny_one(outbox: EventOutbox) -> list[int]:
    numbers = put(outbox, 1)
    outbox.refuse(taken(outbox, 1)[0], "Not authorized")
    put(outbox, 1, camera="yard")  # the commit before which it is put aside
    assert outbox.wait_committed(WAIT_S)
    delivered(outbox, 1)
    outbox.end_connection(is_orderly=True)
    return numbers


def test_what_was_denied_in_a_file_that_was_removed_is_offered_again_as_at_a_start(tmp_path: Path) -> None:
    path, clock_s = tmp_path / "outbox" / "events.sqlite", [0.0]
    with outbox_at(path, now_s=lambda: clock_s[0]) as outbox:
        denied = _deny_one(outbox)
        assert outbox.stats().lost == Losses(quarantine=1)
        _remove(path)
        clock_s[0] += 2.0
        new = put(outbox, 1, camera="yard")
        assert sorted(delivered(outbox, 2)) == sorted(denied + new)
        assert (outbox.stats().lost, outbox.waiting) == (Losses(), 0)


def test_so_is_what_was_denied_in_the_file_that_is_put_in_its_place(tmp_path: Path) -> None:
    path, other, clock_s = tmp_path / "outbox" / "events.sqlite", tmp_path / "other" / "events.sqlite", [0.0]
    with outbox_at(other) as outbox:
        denied = _deny_one(outbox)
    with outbox_at(path, now_s=lambda: clock_s[0]) as outbox:
        put(outbox, 1, camera="gate")
        delivered(outbox, 1)
        other.replace(path)
        clock_s[0] += 2.0
        new = put(outbox, 1, camera="gate")
        assert sorted(delivered(outbox, 2)) == sorted(denied + new)
        assert (outbox.stats().lost, outbox.waiting) == (Losses(), 0)


@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "damaged"])
def test_what_a_file_put_in_its_place_has_is_sent_too(tmp_path: Path, is_damaged: bool) -> None:
    path, other = tmp_path / "outbox" / "events.sqlite", tmp_path / "other" / "events.sqlite"
    with outbox_at(other) as outbox:
        earlier = put(outbox, 20, camera="gate")
    if is_damaged:  # its version: all of it can be read
        other.write_bytes(other.read_bytes()[:60] + b"\xff" * 4 + other.read_bytes()[64:])
    clock_s = [0.0]
    with outbox_at(path, now_s=lambda: clock_s[0]) as outbox:
        numbers = put(outbox, 30)
        assert outbox.wait_committed(WAIT_S)
        other.replace(path)
        clock_s[0] += 2.0
        numbers += put(outbox, 10)
        assert outbox.wait_committed(WAIT_S)
        until(lambda: outbox.waiting == 60)
        assert sorted(delivered(outbox, 60)) == sorted(earlier + numbers)
        assert outbox.waiting == 0
        assert outbox.stats().lost.total == 0


def test_no_number_comes_twice_because_an_earlier_copy_does_not_know_it(tmp_path: Path) -> None:
    path, copy = tmp_path / "outbox" / "events.sqlite", tmp_path / "copy"
    with outbox_at(path) as outbox:
        numbers = put(outbox, 10)
    shutil.copy(path, copy)
    with outbox_at(path) as outbox:
        numbers += put(outbox, 10)
    clock_s = [0.0]
    with outbox_at(path, now_s=lambda: clock_s[0]) as outbox:
        copy.replace(path)
        clock_s[0] += 2.0
        put(outbox, 1, camera="gate")
        assert outbox.wait_committed(WAIT_S)
        assert put(outbox, 1)[0] > numbers[-1]


@pytest.mark.parametrize("is_moved_back", [True, False])
def test_where_no_other_file_can_be_made_that_is_said_and_tried_again(tmp_path: Path, is_moved_back: bool) -> None:
    path = tmp_path / "outbox" / "events.sqlite"
    said: list[tuple[str, str]] = []
    clock_s = [0.0]
    with outbox_at(path, said=said, now_s=lambda: clock_s[0]) as outbox:
        numbers = put(outbox, 1000, size=500)
        assert outbox.wait_committed(WAIT_S)
        path.parent.rename(tmp_path / "away")
        path.parent.write_text("a file where the folder should be")
        clock_s[0] += 2.0
        numbers += put(outbox, 10)
        assert not outbox.wait_committed(0.05)
        assert not outbox.is_durable
        assert said[0][0] == "outbox_disk"
        assert "File exists" in said[0][1]
        path.parent.unlink()
        if is_moved_back:
            (tmp_path / "away").rename(path.parent)
        assert outbox.wait_committed(WAIT_S)
        assert sorted(delivered(outbox, 1010)) == numbers
        assert outbox.stats().lost.total == 0
    assert ("outbox_disk", "") in said
    assert any(name == "outbox_damaged" for name, _ in said) is not is_moved_back


def test_what_could_not_be_carried_over_until_the_end_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "outbox" / "events.sqlite"
    with outbox_at(path) as outbox:
        put(outbox, 100)
        assert outbox.wait_committed(WAIT_S)
        shutil.rmtree(path.parent)
        path.parent.write_text("a file where the folder should be")
    assert outbox.stats().lost.disk == 100
    assert outbox.waiting == 0


def test_a_log_that_was_removed_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "outbox" / "events.sqlite"
    clock_s = [0.0]
    with outbox_at(path, now_s=lambda: clock_s[0]) as outbox:
        numbers = put(outbox, 3000, size=500)
        assert outbox.wait_committed(WAIT_S)
        path.with_name(path.name + "-wal").unlink()
        clock_s[0] += 2.0
        numbers += put(outbox, 10)
        assert outbox.wait_committed(WAIT_S)
        numbers += put(outbox, 10)
        assert outbox.wait_committed(WAIT_S)
        shutil.copytree(path.parent, tmp_path / "killed")
        assert sorted(p.name for p in (tmp_path / "killed").iterdir()) == [
            path.name + ending for ending in ("", "-committed", "-wal")
        ]
    with outbox_at(tmp_path / "killed" / path.name) as outbox:
        assert delivered(outbox, len(numbers)) == numbers
