"""Images in: what is in a folder, told apart by content, read one at a time.

Owns the finding, hashing and reading. An image that cannot be read is skipped and counted, never fatal by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import msgspec
import numpy as np

from edge_sdk.errors import DataError
from edge_sdk.frame import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")
_EVERY_NTH_HELD_OUT = 4


class ImageFile(msgspec.Struct, frozen=True):
    """One readable image: its path and the SHA-256 of its bytes in hex."""

    path: Path
    sha256: str

    def read(self) -> Image:
        """The picture as uint8 (H, W, 3), BGR.

        Raises:
            DataError: when it was readable before and is not any more.
        """
        image = _decode(_read(self.path))
        if image is None:
            raise DataError(f"{self.path}: cannot be read any more")
        return image


class ImageSet(msgspec.Struct, frozen=True):
    """Images of different content, in order of their paths, and the files that could not be read."""

    images: tuple[ImageFile, ...]
    unreadable: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def without(self, other: ImageSet) -> ImageSet:
        """Those whose content is not in `other`."""
        known = {image.sha256 for image in other.images}
        return ImageSet(tuple(i for i in self.images if i.sha256 not in known), self.unreadable)

    def spread(self, count: int) -> ImageSet:
        """At most `count` images, evenly spread over the set."""
        if count >= len(self.images):
            return self
        picks = np.linspace(0, len(self.images) - 1, count).round().astype(int)
        return ImageSet(tuple(self.images[i] for i in picks), self.unreadable)

    def hold_out(self) -> tuple[ImageSet, ImageSet]:
        """Split into (calibration, evaluation): every fourth image, and at least one, is held out."""
        held = set(range(_EVERY_NTH_HELD_OUT - 1, len(self.images), _EVERY_NTH_HELD_OUT)) or {len(self.images) - 1}
        kept = tuple(image for i, image in enumerate(self.images) if i not in held)
        return ImageSet(kept, self.unreadable), ImageSet(tuple(self.images[i] for i in sorted(held)))


def find_images(folders: Sequence[Path]) -> ImageSet:
    """Every readable image below `folders`, each content once.

    Raises:
        DataError: when a folder is not there, or there is not one readable image in all of them.
    """
    images: dict[str, ImageFile] = {}
    unreadable: list[Path] = []
    for path in _candidates(folders):
        data = _read(path)
        if _decode(data) is None:
            unreadable.append(path)
            continue
        digest = hashlib.sha256(data).hexdigest()
        images.setdefault(digest, ImageFile(path, digest))
    if not images:
        where = ", ".join(str(f) for f in folders)
        skipped = f"; {len(unreadable)} files could not be read" if unreadable else ""
        raise DataError(f"{where}: no images in it, expected {' '.join(SUFFIXES)}{skipped}")
    return ImageSet(tuple(images.values()), tuple(unreadable))


def _candidates(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        if not folder.is_dir():
            what = "is a file, expected a folder of images" if folder.exists() else "no such folder of images"
            raise DataError(f"{folder}: {what}")
        yield from sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())


def _read(path: Path) -> bytes:
    """The file's bytes; none where it cannot be read, which then counts as an image that cannot."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _decode(data: bytes) -> Image | None:
    if not data:
        return None
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        return None
    return None if image is None else image.astype(np.uint8, copy=False)
