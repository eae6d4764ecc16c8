"""The state folder: where it is, and that a record in it is whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.core.errors import OutputError
from edge_sdk.core.files import state_folder, write_record


@pytest.mark.parametrize(
    ("systemd", "xdg", "expected"),
    [
        ("/var/lib/edge", "/x", "/var/lib/edge"),
        ("/var/lib/edge:/var/lib/other", "/x", "/var/lib/edge"),
        ("", "/x", "/x/edge-sdk"),
        ("", "relative", "/home/me/.local/state/edge-sdk"),
        ("", "", "/home/me/.local/state/edge-sdk"),
    ],
)
def test_systemd_says_where_it_is_then_the_user_then_the_home(
    monkeypatch: pytest.MonkeyPatch, systemd: str, xdg: str, expected: str
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", systemd)
    monkeypatch.setenv("XDG_STATE_HOME", xdg)
    monkeypatch.setenv("HOME", "/home/me")
    assert state_folder() == Path(expected)


def test_a_record_replaces_the_one_before_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "tuning" / "one.json"
    write_record(path, b"first")
    write_record(path, b"second")
    assert path.read_bytes() == b"second"
    assert [p.name for p in path.parent.iterdir()] == ["one.json"]


def test_what_cannot_be_written_is_one_error_and_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"one\.json: cannot be written: "):
        write_record(tmp_path / "file" / "one.json", b"")
    (tmp_path / "one.json").mkdir()  # a folder cannot be replaced by a file, whoever is asking
    with pytest.raises(OutputError, match=r"one\.json: cannot be written"):
        write_record(tmp_path / "one.json", b"")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "one.json"]
