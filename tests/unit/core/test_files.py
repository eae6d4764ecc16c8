"""Files from outside are refused at once where they are no regular files; records are whole or not there."""

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.bundle.signing import load_private_key, load_public_key
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import CameraError, ConfigError, EdgeError, OutputError
from edge_sdk.core.files import read_regular, state_folder, write_record
from edge_sdk.core.toml import read_document
from edge_sdk.publishing.settings import MqttSettings, read_password
from edge_sdk.publishing.tls import broker_tls, check_credentials
from edge_sdk.service.check import check_run
from edge_sdk.service.settings import PipelineSettings, RunSettings
from edge_sdk.sources.opening import open_source
from edge_sdk_tools.datasets.class_names import read_labels
from tests.support.certificates import Authority
from tests.support.configs import as_nobody
from tests.support.logs import refusal
from tests.support.pictures import write_images, write_video
from tests.support.service import open_descriptors

MIB = 1 << 20


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


NO_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "it is a pipe, expected a regular file"),
    "folder": (Path.mkdir, "it is a folder, expected a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, expected a regular file"),
    "socket": (_socket, "it is a socket"),
    "endless": (_sparse, "MiB, expected a smaller file"),
}


def _with_key(path: Path) -> object:
    certificate = Authority(path.parent).issue("pi").cert_file
    return check_credentials(MqttSettings.parse("mqtts://broker", cert_file=certificate, key_file=path))


READERS: dict[str, Callable[[Path], object]] = {
    "trusted key": load_public_key,
    "signing key": load_private_key,
    "password": read_password,
    "authorities": lambda path: broker_tls(MqttSettings.parse("mqtts://broker", ca_file=path)),
    "certificate": lambda path: broker_tls(MqttSettings.parse("mqtts://broker", cert_file=path, key_file=path)),
    "private key": _with_key,
    "configuration": lambda path: read_document(path, ConfigError),
    "model.toml": load_model_spec,
    "target": lambda path: load_target(str(path)),
    "labels": read_labels,
}


@pytest.mark.parametrize("what", NO_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_that_can_be_is_refused_in_words(tmp_path: Path, reader: str, what: str) -> None:
    make, expected = NO_FILES[what]
    path = tmp_path / "x.toml"
    make(path)
    descriptors = open_descriptors()
    said = refusal(EdgeError, READERS[reader], path)
    assert f"{path}" in said
    assert expected in said
    assert open_descriptors() == descriptors


def test_a_file_is_read_whole_up_to_its_limit_also_where_it_claims_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for size in (0, 1, MIB):
        (tmp_path / "a").write_bytes(b"x" * size)
        assert read_regular(tmp_path / "link", MIB) == b"x" * size
    assert read_regular(Path("/proc/self/status")).startswith(b"Name:")
    assert "NUL" in refusal(OSError, read_regular, Path("a\0b"))


def test_where_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for systemd, xdg, expected in (
        ("/var/lib/edge", "/x", "/var/lib/edge"),
        ("/var/lib/edge:/var/lib/other", "/x", "/var/lib/edge"),
        ("", "/x", "/x/edge-sdk"),
        ("", "", "/home/me/.local/state/edge-sdk"),
    ):
        monkeypatch.setenv("STATE_DIRECTORY", systemd)
        monkeypatch.setenv("XDG_STATE_HOME", xdg)
        monkeypatch.setenv("HOME", "/home/me")
        assert state_folder() == Path(expected)


def test_a_record_replaces_the_one_before_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "tuning" / "one.json"
    write_record(path, b"first")
    write_record(path, b"second")
    assert (path.read_bytes(), [p.name for p in path.parent.iterdir()]) == (b"second", ["one.json"])


def test_what_cannot_be_written_is_one_error_and_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "one.json").mkdir()  # a folder cannot be replaced by a file, whoever is asking
    for path in (tmp_path / "file" / "one.json", tmp_path / "one.json"):
        assert "one.json: cannot be written: " in refusal(OutputError, write_record, path, b"")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "one.json"]


# Files and folders that this user may not read: told so, and not called broken or missing.


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One to which everybody finds the way, which `tmp_path` is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize(
    ("source", "closed", "mode", "expected"),
    [
        ("film.avi", "film.avi", 0, ": permission denied; let user [a-z0-9]+ read it"),
        ("images", "images/0.png", 0, ": none of 1 images can be read; permission denied; let user [a-z0-9]+ read it"),
        ("images", "images", 0, ": permission denied; let user [a-z0-9]+ read it"),
        ("images", "images", 0o744, ": permission denied; let user [a-z0-9]+ read it"),
        ("images/0.png", "images", 0, ": permission denied; let user [a-z0-9]+ into its folder"),
    ],
)
def test_what_may_not_be_read_is_so(open_folder: Path, source: str, closed: str, mode: int, expected: str) -> None:
    write_video(open_folder / "film.avi", range(3))
    write_images(open_folder / "images", ["0.png"])
    (open_folder / closed).chmod(mode)
    location = str(open_folder / source)
    with as_nobody():
        with pytest.raises(CameraError, match=f"^{location}{expected}$"):
            open_source(location)
        checked = check_run(RunSettings(device="pi", pipelines=(PipelineSettings(source=location, bundle=Path("no")),)))
    (open_folder / closed).chmod(0o755)
    said = [problem.text for problem in checked.pipelines[0].problems if problem.text.startswith(location)]
    assert len(said) == (source != "images" or closed == "images")  # `--check` does not open each image
    assert all(" permission denied; let user " in line for line in said)
