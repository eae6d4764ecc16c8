"""Finished results on disk, so that none is computed twice, under keys made of all that decides them.

edge-sdk's own sources and the versions of packages are part of every key. A file is MessagePack, with the key and a
hash beside the result, so that a damaged one is noticed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

import edge_sdk
import edge_sdk_tools
from edge_sdk.core.errors import OutputError
from edge_sdk_tools.jobs.outcome import encoded

PACKAGES = ("edge-sdk", "msgspec", "numpy", "onnx", "onnxruntime", "opencv-python-headless")
"""Those that decide what a job computes, and how its result is written."""


@functools.cache
def package_versions() -> dict[str, str]:
    """This process's versions of `PACKAGES`; "none" for one that is not installed."""
    return {name: _version(name) for name in PACKAGES}


@functools.cache
def source_digest() -> str:
    """SHA-256 of edge-sdk's sources: two checkouts may differ and have the same version."""
    digest = hashlib.sha256()
    for package in (edge_sdk, edge_sdk_tools):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{root.name}/{path.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def key_of(step: str, *decides: object) -> str:
    """The key of one step; edge-sdk's own sources and the versions of the packages always decide too.

    Args:
        step: what is done, as the key begins.
        decides: everything else: bytes, or what `encoded` takes.
    """
    parts = (encoded([source_digest(), package_versions()]), *(_bytes(part) for part in decides))
    return f"{step}-{hashlib.sha256(b''.join(hashlib.sha256(part).digest() for part in parts)).hexdigest()}"


def _bytes(part: object) -> bytes:
    return part if isinstance(part, bytes) else encoded(part)


_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_ABANDONED_S = 3600.0  # age after which no process still writes a temporary file


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    key: str
    sha256: bytes
    result: bytes


class Store:
    """A folder of results; several processes may use it at once.

    Raises:
        OutputError: it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> bytes | None:
        """The result under a key; None when there is none, or none that is whole."""
        path = self._path(key)
        try:
            kept = msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
        except (OSError, msgspec.DecodeError):
            return None
        if kept.key != key or kept.sha256 != hashlib.sha256(kept.result).digest():
            return None
        with contextlib.suppress(OSError):  # a read-only folder can still be read
            os.utime(path)
        return kept.result

    def put(self, key: str, result: bytes) -> None:
        """Keep a result; a reader sees all of it or nothing.

        Raises:
            OutputError: it cannot be written.
        """
        path = self._path(key)
        partial = path.with_name(f".{key}.{os.getpid()}.partial")
        kept = _Kept(key, hashlib.sha256(result).digest(), result)
        # Nothing waits for the disk: what a power cut leaves half written is noticed by its hash.
        with self._writing():
            try:
                partial.write_bytes(msgspec.msgpack.encode(kept))
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def prune(self, max_bytes: int) -> int:
        """Remove the results that were not used for longest, until the rest takes at most `max_bytes`.

        Returns:
            How many results were removed.
        """
        with self._writing():
            self._remove_abandoned()
            sizes = [
                (status.st_mtime_ns, status.st_size, path)
                for path in self._folder.glob("*.msgpack")
                if (status := _status(path)) is not None
            ]
            total = sum(size for _, size, _ in sizes)
            removed = 0
            for _, size, path in sorted(sizes):
                if total <= max_bytes:
                    break
                path.unlink(missing_ok=True)
                total -= size
                removed += 1
        return removed

    def _remove_abandoned(self) -> None:
        """Remove temporary files of killed processes."""
        for path in self._folder.glob(".*.partial"):
            status = _status(path)
            if status is not None and time.time() - status.st_mtime > _ABANDONED_S:
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r}: expected a key of letters, digits, '.', '_' and '-', which names a file")
        return self._folder / f"{key}.msgpack"

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as cause:
            raise OutputError(f"{self._folder}: results cannot be kept: {cause.strerror or cause}") from cause


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:  # removed by another process meanwhile
        return None
