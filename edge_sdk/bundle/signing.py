"""Make Ed25519 keys, sign manifests with them, and verify signatures.

Key files are PEM. A signature covers the bytes of a manifest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edge_sdk.core.errors import ConfigError, OutputError, UsageError
from edge_sdk.core.files import check_new_file, read_regular

if TYPE_CHECKING:  # saves 8 MB and 20 ms if no signature is to be verified
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_BYTES = 64
# Signed together with the manifest, so that a signature made for another purpose is never valid here.
_CONTEXT = b"edge-sdk bundle manifest v1\n"


def generate_key(path: Path) -> Path:
    """Write a new private key (mode 0600) and, beside it, its public half as `PATH.pub`; both PEM.

    Returns:
        The public key's path.

    Raises:
        UsageError: one of the files exists already, or PATH is no file name; neither file is left behind.
        OutputError: a file cannot be written; neither file is left behind.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not path.name:
        raise UsageError(f"{path}: expected the name of a file for the key, such as edge-sdk.key")
    check_new_file(path)
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    public_path = path.with_name(path.name + ".pub")
    _write_new(path, private, 0o600)
    try:
        _write_new(public_path, public, 0o644)
    except (OutputError, UsageError):
        path.unlink()
        raise
    return public_path


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Read an unencrypted Ed25519 private key in PEM; raise ConfigError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read(path)
    if b"PUBLIC KEY" in data:
        raise ConfigError(f"{path}: this is a public key; sign with its private half, the file without .pub")
    key = _parsed(lambda: load_pem_private_key(data, password=None))
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path}: not an Ed25519 private key, expected the PEM file that `edge-sdk keygen` wrote")
    return key


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Read an Ed25519 public key in PEM; raise ConfigError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = _read(path)
    if b"PRIVATE KEY" in data:
        raise ConfigError(f"{path}: this is a private key; a device trusts its public half, {path.name}.pub")
    key = _parsed(lambda: load_pem_public_key(data))
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path}: not an Ed25519 public key, expected the .pub file that `edge-sdk keygen` wrote")
    return key


def _parsed(parse: Callable[[], object]) -> object:
    """Return a key; None where the bytes are none."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return parse()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None


def public_keys(given: Sequence[Ed25519PublicKey | Path | str]) -> list[Ed25519PublicKey]:
    """Return public keys; read those that are given as files; raise ConfigError."""
    each = [given] if isinstance(given, str | Path) else given  # a string is a sequence, too
    return [load_public_key(Path(key)) if isinstance(key, str | Path) else key for key in each]


def sign(manifest: bytes, key: Ed25519PrivateKey) -> bytes:
    """Sign a manifest; return the 64 bytes of manifest.sig."""
    return key.sign(_CONTEXT + manifest)


def is_signed_by_any(manifest: bytes, signature: bytes, keys: Iterable[Ed25519PublicKey]) -> bool:
    """Tell whether one of `keys` made `signature` over `manifest`."""
    from cryptography.exceptions import InvalidSignature

    for key in keys:
        with contextlib.suppress(InvalidSignature):
            key.verify(signature, _CONTEXT + manifest)
            return True
    return False


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such key file") from None
    except OSError as cause:
        raise ConfigError(f"{path}: key cannot be read: {cause.strerror}") from cause


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise UsageError(f"{path}: exists already; choose another name, a key is never overwritten") from None
    except OSError as cause:
        raise OutputError(f"{path}: cannot be written: {cause.strerror}") from cause
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as cause:
        path.unlink()
        raise OutputError(f"{path}: cannot be written: {cause.strerror}") from cause
