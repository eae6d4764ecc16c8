"""What a test needs and this machine lacks: it is skipped with the reason, or fails where it should be there.

And what takes long: modules that are imported where they are used, because every worker collects every file; folders
that are made once for all processes that test.
"""

import fcntl
import hashlib
import importlib
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest


class Lazy:
    """A module that is imported when a public name of it is used; pytest asks for private ones."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def needs_torch() -> pytest.MarkDecorator:
    """Skip a file's tests where PyTorch or its exporter is not installed."""
    missing = [name for name in ("torch", "onnxscript") if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{missing} is the extra [torch]")


def not_installed(reason: str) -> NoReturn:
    """Something that could be installed, or fetched: a machine with CI=true has it."""
    _end(reason, is_failure=os.environ.get("CI") == "true")


def not_allowed(reason: str) -> NoReturn:
    """Something that takes root, a kernel or a system of another kind: with EDGE_SDK_REQUIRE=rights it is there."""
    _end(reason, is_failure=os.environ.get("EDGE_SDK_REQUIRE") == "rights")


def _end(reason: str, *, is_failure: bool) -> NoReturn:
    if is_failure:
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that all processes see, for as long as this is open; it ends with its owner, whatever ends that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Cache:
    """Folders that are costly to make, kept under a key of what they are made from."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def folder_of(self, name: str, parts: Iterable[bytes], make: Callable[[Path], object]) -> Path:
        """The folder `name` made from `parts`; `make` fills an empty one when it is not there yet."""
        digest = hashlib.sha256()
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        kept = self.folder / f"{name}-{digest.hexdigest()[:16]}"
        with locked(self.folder / f".{name}.lock"):
            if not kept.exists():
                self._drop_stale(name)
                with tempfile.TemporaryDirectory(dir=self.folder, prefix=f".{name}-") as scratch:
                    fresh = Path(scratch) / "fresh"
                    fresh.mkdir()
                    make(fresh)
                    fresh.rename(kept)
            os.utime(kept)
        return kept

    def _drop_stale(self, name: str) -> None:
        for old in self.folder.glob(f"{name}-*"):
            if time.time() - old.stat().st_mtime > 24 * 3600:
                shutil.rmtree(old, ignore_errors=True)
