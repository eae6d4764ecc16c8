"""A signed bundle that is older than one that ran here is refused, and a state folder that is no use stops nobody."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_sdk.bundle import rollback
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.rollback import refuse_older, remember_version
from edge_sdk.bundle.signing import generate_key, load_private_key, sign
from edge_sdk.cli.root import run
from edge_sdk.core.errors import BundleError
from edge_sdk.core.files import write_record
from tests.support.bundles import edit_manifest, write_bundle, write_graded


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a device on which nothing ran yet remembers the newest version."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "edge-sdk" / "versions" / "tiny.json"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The public key; the private one is beside it."""
    return generate_key(tmp_path / "fleet.key")


def _make(folder: Path, version: int, key: Path) -> Path:
    """Give a bundle a version, and sign it."""
    edit_manifest(folder, version=version)
    signature = sign((folder / "manifest.json").read_bytes(), load_private_key(key.with_suffix("")))
    (folder / "manifest.sig").write_bytes(signature)
    return folder


def _opened(folder: Path, version: int, key: Path) -> Bundle:
    if not folder.exists():
        write_bundle(folder)
    return Bundle.open(_make(folder, version, key), [key])


def _proved(bundle: Bundle) -> list[str]:
    """Run it, and return what is said."""
    refuse_older(bundle, allow_older=False)
    return [*filter(None, [remember_version(bundle)])]


def test_an_older_version_is_refused_and_says_what_to_do(record: Path, tmp_path: Path, key: Path) -> None:
    path = tmp_path / "a.edge"
    for version in (3, 5, 5):
        assert _proved(_opened(path, version, key)) == []
    older = _opened(path, 4, key)
    with pytest.raises(BundleError) as caught:
        refuse_older(older, allow_older=False)
    assert caught.value.exit_code == 7
    assert str(caught.value) == (
        f"{path}: version 4 of tiny, expected 5 or newer: 5 ran here before; build it again, or allow older ones with "
        "--allow-older ([trust] allow_older = true)"
    )


def test_what_is_allowed_is_said_and_does_not_lower_what_is_remembered(record: Path, tmp_path: Path, key: Path) -> None:
    path = tmp_path / "a.edge"
    _proved(_opened(path, 5, key))
    older = _opened(path, 4, key)
    assert "version 4 of tiny is older than 5" in refuse_older(older, allow_older=True)
    remember_version(older)
    with pytest.raises(BundleError):
        refuse_older(older, allow_older=False)
    assert refuse_older(_opened(path, 5, key), allow_older=True) == ""


def test_of_two_versions_that_are_proved_at_the_same_time_the_newer_is_remembered(
    record: Path, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = (_opened(tmp_path / f"{version}.edge", version, key) for version in (2, 3))
    other = threading.Thread(target=remember_version, args=(newer,))

    def write_later(path: Path, data: bytes) -> None:
        if not other.ident:
            other.start()
            other.join(0.1)
        write_record(path, data)

    monkeypatch.setattr(rollback, "write_record", write_later)
    remember_version(older)
    other.join(10)
    assert record.read_bytes() == b'{"version":3}'


def test_a_bundle_whose_signature_nobody_verified_counts_for_nothing(record: Path, tmp_path: Path, key: Path) -> None:
    _opened(tmp_path / "a.edge", 5, key)
    _proved(Bundle.open(tmp_path / "a.edge"))
    assert not record.exists()
    _proved(_opened(tmp_path / "a.edge", 5, key))
    _make(tmp_path / "a.edge", 4, key)
    assert refuse_older(Bundle.open(tmp_path / "a.edge"), allow_older=False) == ""


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: path.write_bytes(b'{"version": "5"}'), "tiny.json: damaged"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "tiny.json: cannot be read: it is a pipe"),
    ],
)
def test_a_damaged_record_is_said_once_and_replaced(
    record: Path, tmp_path: Path, key: Path, damage: Callable[[Path], object], expected: str
) -> None:
    bundle = _opened(tmp_path / "a.edge", 5, key)
    _proved(bundle)
    damage(record)
    [line] = _proved(bundle)
    assert line.startswith("which version of tiny is the newest is not known, so that any runs: ")
    assert expected in line
    assert _proved(bundle) == []
    with pytest.raises(BundleError):
        refuse_older(_opened(tmp_path / "a.edge", 4, key), allow_older=False)


def test_a_state_folder_that_is_none_stops_nobody_and_is_said_in_one_line(
    record: Path, tmp_path: Path, key: Path
) -> None:
    (tmp_path / "edge-sdk").write_text("in the way")
    [line] = _proved(_opened(tmp_path / "a.edge", 5, key))
    assert "so that any runs: " in line
    assert _proved(_opened(tmp_path / "a.edge", 4, key))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    cv2.imwrite(str(folder / "0.png"), np.zeros((8, 8, 3), np.uint8))
    return folder


def test_a_run_refuses_an_older_one_unless_it_is_allowed(
    record: Path, tmp_path: Path, key: Path, pictures: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_graded(tmp_path / "graded.edge")
    command = ["run", str(path), "--source", str(pictures), "--trust", str(key), "--trial-seconds", "0"]
    _make(path, 5, key)
    assert run(command) == 0
    _make(path, 4, key)
    capfd.readouterr()
    assert run(command) == 7
    assert capfd.readouterr().err.startswith(f"edge-sdk: {path}: version 4 of tiny, expected 5 or newer")
    assert run([*command, "--allow-older"]) == 0
    assert f"warning: {path}: version 4 of tiny is older than 5, which ran here" in capfd.readouterr().err
    assert run([*command, "--check"]) == 7


def test_a_bundle_that_does_not_run_here_is_not_the_newest(
    record: Path, tmp_path: Path, key: Path, pictures: Path
) -> None:
    path = write_graded(tmp_path / "graded.edge")
    edit_manifest(path, onnxruntime={"minimum": "1.0.0", "maximum": "1.1.0"})
    _make(path, 9, key)
    assert run(["run", str(path), "--source", str(pictures), "--trust", str(key)]) == 6
    assert not record.exists()
