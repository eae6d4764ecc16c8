"""Files from outside are refused at once where they are no regular files; records are whole or not there."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.bundle.signing import load_private_key, load_public_key
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import ConfigError, EdgeError, OutputError
from edge_sdk.core.files import read_regular, state_folder, write_record
from edge_sdk.core.toml import read_document
from edge_sdk.publishing.settings import MqttSettings, read_password
from edge_sdk.publishing.tls import broker_tls, check_credentials
from edge_sdk_tools.datasets.class_names import read_labels
from tests.support.certificates import Authority

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


def _with_authorities(path: Path) -> object:
    return broker_tls(MqttSettings.parse("mqtts://broker", ca_file=path))


def _with_key(path: Path) -> object:
    """The certificate beside it is a good one."""
    certificate = Authority(path.parent).issue("pi").cert_file
    return check_credentials(MqttSettings.parse("mqtts://broker", cert_file=certificate, key_file=path))


def _with_certificate(path: Path) -> object:
    return broker_tls(MqttSettings.parse("mqtts://broker", cert_file=path, key_file=path))


READERS: dict[str, Callable[[Path], object]] = {
    "trusted key": load_public_key,
    "signing key": load_private_key,
    "password": read_password,
    "authorities": _with_authorities,
    "certificate": _with_certificate,
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
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(EdgeError) as caught:
        READERS[reader](path)
    assert f"{path}" in str(caught.value)
    assert expected in str(caught.value)
    assert caught.value.exit_code == 2
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


@pytest.mark.parametrize("size", [0, 1, MIB])
def test_a_file_is_read_whole_up_to_its_limit(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * size)
    (tmp_path / "link").symlink_to(path)
    assert read_regular(tmp_path / "link", MIB) == b"x" * size


def test_a_file_that_claims_to_be_empty_is_read(tmp_path: Path) -> None:
    assert read_regular(Path("/proc/self/status")).startswith(b"Name:")


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(OSError, match="NUL"):
        read_regular(Path("a\0b"))


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
