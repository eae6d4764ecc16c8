"""What is kept on disk: whole or not at all, found again, bounded."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from edge_sdk.errors import OutputError
from edge_sdk_tools.candidates import Finished, Store, Workshop
from tests.host import candidate_jobs as jobs
from tests.host.candidate_jobs import Measured, Recipe


def _run(store: Path, items: list[Recipe]) -> list[bool]:
    """Whether each was remembered."""
    seen: dict[str, Finished[Measured]] = {}
    with Workshop(store=store) as workshop:
        results = workshop.run(
            jobs.measure,
            items,
            shared=None,
            key=jobs.key,
            result=Measured,
            on_done=lambda finished: seen.update({finished.key: finished}),
        )
    assert results == [Measured(item.number, item.number / 3) for item in items]
    return [seen[jobs.key(item)].remembered for item in items]


def test_a_second_run_computes_nothing(tmp_path: Path) -> None:
    items = [Recipe(0), Recipe(1)]
    assert _run(tmp_path / "new" / "store", items) == [False, False]
    assert _run(tmp_path / "new" / "store", [*items, Recipe(2)]) == [True, True, False]
    assert sorted(path.name for path in (tmp_path / "new" / "store").iterdir()) == [
        f"recipe-{number}.msgpack" for number in range(3)
    ]


def test_a_damaged_file_is_computed_again(tmp_path: Path) -> None:
    items = [Recipe(number) for number in range(5)]
    _run(tmp_path, items)
    whole = (tmp_path / "recipe-0.msgpack").read_bytes()
    (tmp_path / "recipe-0.msgpack").write_bytes(whole[:-3])
    (tmp_path / "recipe-1.msgpack").write_bytes(b"")
    flipped = bytearray((tmp_path / "recipe-2.msgpack").read_bytes())
    flipped[-12] ^= 1  # inside a float: still a result, and a wrong one
    (tmp_path / "recipe-2.msgpack").write_bytes(flipped)
    (tmp_path / "recipe-3.msgpack").write_bytes(whole)  # another's
    assert _run(tmp_path, items) == [False, False, False, False, True]
    assert _run(tmp_path, items) == [True] * 5


def test_a_result_of_an_older_form_is_computed_again(tmp_path: Path) -> None:
    Store(tmp_path).put("recipe-0", b"\x81\xa6number\x00")
    assert _run(tmp_path, [Recipe(0)]) == [False]


def test_prune_removes_what_was_not_used_for_longest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for age, key in enumerate("dcba"):
        store.put(key, bytes(1000))
        os.utime(tmp_path / f"{key}.msgpack", (age, age))
    size = (tmp_path / "a.msgpack").stat().st_size
    assert store.get("d") == bytes(1000)  # used, so it is the newest now
    assert store.prune(4 * size) == 0
    assert store.prune(2 * size + 1) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.msgpack", "d.msgpack"]
    assert store.prune(0) == 2


def test_prune_removes_what_killed_processes_left(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old, new = tmp_path / ".a.1.partial", tmp_path / ".b.2.partial"
    old.touch()
    new.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    assert store.prune(0) == 0
    assert list(tmp_path.iterdir()) == [new]


@pytest.mark.parametrize("key", ["", "../up", "a/b", ".hidden", "a\0b", "x" * 129])
def test_a_key_that_is_no_file_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="names a file"):
        Store(tmp_path).put(key, b"")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"file/store: results cannot be kept: Not a directory$"):
        Store(tmp_path / "file" / "store")
    store = Store(tmp_path / "store")
    (tmp_path / "store" / "a.msgpack").mkdir()
    with pytest.raises(OutputError, match="results cannot be kept"):
        store.put("a", b"")
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["a.msgpack"]
