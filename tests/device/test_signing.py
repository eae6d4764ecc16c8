"""Keys: made once, never overwritten, and nothing but a trusted one's signature counts."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edge_sdk.errors import ConfigError, OutputError, UsageError
from edge_sdk.signing import generate_key, is_signed_by_any, load_private_key, load_public_key, sign


def test_signature_is_good_for_its_key_and_bytes_only(tmp_path: Path) -> None:
    public = load_public_key(generate_key(tmp_path / "a.key"))
    stranger = load_public_key(generate_key(tmp_path / "b.key"))
    signature = sign(b"promise", load_private_key(tmp_path / "a.key"))
    assert is_signed_by_any(b"promise", signature, [stranger, public])
    assert not is_signed_by_any(b"promise", signature, [stranger])
    assert not is_signed_by_any(b"Promise", signature, [public])
    assert not is_signed_by_any(b"promise", signature, [])
    assert not is_signed_by_any(b"promise", b"\0" * 64, [public])


def test_private_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    generate_key(tmp_path / "a.key")
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("existing", ["a.key", "a.key.pub"])
def test_a_key_is_never_overwritten(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        generate_key(tmp_path / "a.key")
    assert [p.name for p in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "precious"


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        generate_key(tmp_path / "no" / "a.key")


@pytest.mark.parametrize("name", [".", "/", ""])
def test_a_key_needs_a_name(name: str) -> None:
    with pytest.raises(UsageError, match="expected the name of a file for the key"):
        generate_key(Path(name))


_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from edge_sdk.errors import OutputError
from edge_sdk.signing import generate_key
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    generate_key(Path(sys.argv[1]))
except OutputError as error:
    print(error)
"""


# A private key has 119 bytes, a public one 113.
@pytest.mark.parametrize(("room_bytes", "victim"), [(0, "a.key"), (50, "a.key")])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, room_bytes: int, victim: str) -> None:
    command = [sys.executable, "-c", _FULL_DISK, str(tmp_path / "a.key"), str(room_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    assert f"{tmp_path / victim}: cannot be written: " in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_wrong_key_files(tmp_path: Path) -> None:
    generate_key(tmp_path / "a.key")
    (tmp_path / "junk").write_text("hello")
    other = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "ec.key").write_bytes(
        other.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (tmp_path / "ec.pub").write_bytes(
        other.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(ConfigError, match="no such key file"):
        load_private_key(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_private_key(tmp_path)
    with pytest.raises(ConfigError, match="not a private key"):
        load_private_key(tmp_path / "junk")
    with pytest.raises(ConfigError, match="not an Ed25519 key"):
        load_private_key(tmp_path / "ec.key")
    with pytest.raises(ConfigError, match="this is a public key"):
        load_private_key(tmp_path / "a.key.pub")
    with pytest.raises(ConfigError, match="this is a private key"):
        load_public_key(tmp_path / "a.key")
    with pytest.raises(ConfigError, match="not a public key"):
        load_public_key(tmp_path / "junk")
    with pytest.raises(ConfigError, match="not an Ed25519 key"):
        load_public_key(tmp_path / "ec.pub")
