"""Outcomes of jobs as bytes, between processes and on disk, so that none is computed twice.

A result or an error becomes bytes where the job ran, and is turned back on the host. Paths are bytes, because file
names may not be valid text. The store keeps results under keys made of all that decides them, edge-sdk's own sources
and the versions of packages among it; the key and a hash lie beside each, so that a damaged one is noticed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import traceback
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np

import edge_sdk
import edge_sdk_tools
from edge_sdk.core import errors
from edge_sdk.core.errors import EdgeError, OutputError, raising, typed_line

T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one job: its result as MessagePack, or an error's class in `core.errors`, text and traceback."""

    result: bytes | None
    error: str = ""
    text: str = ""
    trace: str = ""

    def unwrap(self) -> bytes:
        """Return the result as MessagePack; raise the job's EdgeError, or one line about any other exception."""
        if self.result is None:
            error: EdgeError = getattr(errors, self.error)(self.text)
            raise error from RuntimeError(self.trace)  # what stands behind it in another process
        return self.result


def outcome_of(function: Callable[[T, S], object], item: T, shared: S, key: str) -> Outcome:
    """Do one job. Only what is meant to end the process (KeyboardInterrupt, SystemExit) leaves this as an exception."""
    try:
        return Outcome(encoded(function(item, shared)))
    except Exception as cause:  # noqa: BLE001 - a job may do anything, and one line has to name its item
        error = cause if isinstance(cause, EdgeError) else EdgeError(f"{key}: {typed_line(cause)}")
        family = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        return Outcome(None, family.__name__, str(error), "".join(traceback.format_exception(cause)))


def encoded(result: object) -> bytes:
    """Encode a result, or what decides one, as MessagePack; arrays can be encoded and not decoded."""
    return msgspec.msgpack.encode(result, enc_hook=_encode)


def decoded(data: bytes, kind: type[R]) -> R:
    """Decode what `encoded` made."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode)


def _encode(value: Any) -> object:
    """Turn what MessagePack does not know into what it does; a class may bring along how: `packed` and `unpacked`."""
    if isinstance(value, Path):
        return os.fsencode(value)
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), value.tobytes()]
    if hasattr(value, "packed"):
        return value.packed()
    raise NotImplementedError(f"{type(value).__name__} is no result of a job")


def _decode(kind: Any, value: Any) -> object:
    if issubclass(kind, Path) and isinstance(value, bytes):
        return Path(os.fsdecode(value))
    if hasattr(kind, "unpacked"):
        return kind.unpacked(value)
    raise NotImplementedError(f"{kind.__name__} is no result of a job")


Outcomes: TypeAlias = Generator[tuple[str, Outcome], None, None]
"""Outcomes under their keys, as they come; closing it cancels the rest."""


class Executor:
    """Does jobs, `at_once` of them, each of which may take so many threads that all share the cores.

    This one does them in this process, one after another.
    """

    at_once = 1

    def __init__(self) -> None:
        self.threads_per_job = len(os.sched_getaffinity(0))

    def perform(self, function: Callable[[T, S], object], items: Mapping[str, T], shared: S) -> Outcomes:
        """Do a job an item and yield the outcomes under their keys, as they come; closing it cancels the rest."""
        for key, item in items.items():
            yield key, outcome_of(function, item, shared, key)

    def close(self, *, interrupted: bool) -> None:
        """Let the workers go, at once where something went wrong; this process has none."""


@functools.cache
def package_versions() -> dict[str, str]:
    """Return the versions of the packages that decide results or their encoding; "none" for a missing one."""
    packages = ("edge-sdk", "msgspec", "numpy", "onnx", "onnxruntime", "opencv-python-headless")
    versions = dict.fromkeys(packages, "none")
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


@functools.cache
def source_digest() -> str:
    """Return the SHA-256 of edge-sdk's code and tables, because checkouts of one version may differ."""
    digest = hashlib.sha256()
    for package in (edge_sdk, edge_sdk_tools):
        root = Path(package.__path__[0])
        for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".txt", ".json")):
            digest.update(f"{root.name}/{path.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def key_of(step: str, *decides: object) -> str:
    """Return the key of one step, made of `decides` (bytes, or what `encoded` takes), the sources and the packages."""
    digest = hashlib.sha256()
    for part in ([source_digest(), package_versions()], *decides):
        digest.update(hashlib.sha256(part if isinstance(part, bytes) else encoded(part)).digest())
    return f"{step}-{digest.hexdigest()}"


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    key: str
    sha256: bytes
    result: bytes


class Store:
    """A folder of results, which several processes may use at once; an OutputError says that it cannot be written.

    A key is a part of a file's name, as `key_of` makes it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> bytes | None:
        """Return the result under a key; None where there is none, or a damaged one."""
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
        """Keep a result; a reader sees all of it or nothing."""
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

    def prune(self, max_bytes: int) -> None:
        """Remove the results that were not used for longest, until the rest takes at most `max_bytes`."""
        with self._writing():
            # What killed processes left half written is among them.
            found = sorted((path.stat().st_mtime_ns, path.stat().st_size, path) for path in self._folder.iterdir())
            total = sum(size for _, size, _ in found)
            for _, size, path in found:
                if total <= max_bytes:
                    break
                path.unlink(missing_ok=True)
                total -= size

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.msgpack"

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return raising(OutputError, f"{self._folder}: results cannot be kept")
