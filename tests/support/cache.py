"""Cache: folders that are costly to make, kept under a key of what they are made from, for all processes that test."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_STALE_S = 24 * 3600


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that all processes see, for as long as this is open; it ends with its owner, whatever ends that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Cache:
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
            if time.time() - old.stat().st_mtime > _STALE_S:
                shutil.rmtree(old, ignore_errors=True)
