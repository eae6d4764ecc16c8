"""Cache: folders that are costly to make, kept in the checkout under a key of what they are made from."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_STALE_S = 24 * 3600


class Cache:
    """Folders by name and key.

    Args:
        folder: where they lie; made when it is missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def folder_of(self, name: str, parts: Iterable[bytes], make: Callable[[Path], None]) -> Path:
        """The folder `name` made from `parts`; `make` fills an empty one when it is not there yet.

        Two test runs at once may both make it: the first one's stays.
        """
        digest = hashlib.sha256()
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        kept = self.folder / f"{name}-{digest.hexdigest()[:16]}"
        if not kept.exists():
            self._drop_stale(name)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=f".{name}-") as scratch:
                fresh = Path(scratch) / "fresh"
                fresh.mkdir()
                make(fresh)
                if not kept.exists():
                    fresh.rename(kept)
        os.utime(kept)
        return kept

    def _drop_stale(self, name: str) -> None:
        for old in self.folder.glob(f"{name}-*"):
            if time.time() - old.stat().st_mtime > _STALE_S:
                shutil.rmtree(old, ignore_errors=True)
