"""The folder of a bundle being built: everything happens in a temporary sibling, which is renamed when it is whole.

A failed build leaves what was there before, and nothing of its own.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from edge_sdk.errors import OutputError, UsageError
from edge_sdk.manifest import MANIFEST_FILE, SIGNATURE_FILE, FileEntry, Manifest, encode_manifest

Replaced: TypeAlias = Literal["nothing", "unsigned", "signed"]


class BundleFolder:
    """What a build writes to.

    Attributes:
        output: where the bundle will be.
        work: for the steps between; gone at the end.
        replaces: what will be replaced: `nothing`, `unsigned` or `signed`.
    """

    def __init__(self, output: Path, partial: Path) -> None:
        self.output, self._partial = output, partial
        self._content = partial / "bundle"
        self.work = partial / "work"
        self._entries: list[FileEntry] = []
        self.replaces: Replaced = _what_is_at(output)
        self._content.mkdir(parents=True)
        self.work.mkdir()

    def add(self, name: str, data: bytes) -> None:
        """Write one file through to the disk and remember its size and hash."""
        _write_through(self._content / name, data)
        self._entries.append(FileEntry(name, len(data), hashlib.sha256(data).hexdigest()))

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """What was added, sorted by name."""
        return tuple(sorted(self._entries, key=lambda e: e.name))

    def preview(self, manifest: Manifest) -> Path:
        """Write the manifest as it stands; returns the bundle where it is being built."""
        _write_through(self._content / MANIFEST_FILE, encode_manifest(manifest))
        return self._content

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest and move the whole bundle to its place, an older one out of it."""
        self.preview(manifest)
        _sync_folder(self._content)
        old = self._partial / "old"
        if self.output.exists():
            self.output.rename(old)
        try:
            self._content.rename(self.output)
        except OSError:
            if old.exists():
                old.rename(self.output)
            raise
        _sync_folder(self.output.parent)


@contextlib.contextmanager
def bundle_folder(output: Path) -> Iterator[BundleFolder]:
    """Open a temporary sibling of `output` for a build; it is removed whatever happens.

    Raises:
        UsageError: when `output` is something else than a bundle, or in no folder.
        OutputError: when the disk refuses.
    """
    _refuse_other_things(output)
    partial = output.parent / f".{output.name}.building-{os.getpid()}"
    try:
        yield BundleFolder(output, partial)
    except OSError as cause:
        if cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OutputError(f"{output}: no space left on the disk; nothing was changed") from cause
        raise OutputError(f"{output}: cannot be written: {cause.strerror or cause}; nothing was changed") from cause
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _refuse_other_things(output: Path) -> None:
    if output.name in ("", ".", ".."):
        raise UsageError(f"{output}: expected the name of a bundle to write, such as NAME.edge")
    if not output.parent.is_dir():
        raise UsageError(f"{output}: the folder {output.parent} does not exist")
    if not output.exists():
        return
    if not output.is_dir():
        raise UsageError(f"{output}: exists and is not a bundle; choose another name with -o")
    if any(output.iterdir()) and not (output / MANIFEST_FILE).is_file():
        raise UsageError(f"{output}: exists and is not a bundle (no {MANIFEST_FILE}); choose another name with -o")


def _what_is_at(output: Path) -> Replaced:
    if not (output / MANIFEST_FILE).exists():
        return "nothing"
    return "signed" if (output / SIGNATURE_FILE).exists() else "unsigned"


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
