"""One image file, a set of files of different content, and whether a file is an image that can be used.

A file is read once: hashed, looked at, and decoded where that is wanted. Hidden files are left out, and a loop of links
ends.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import cv2
import msgspec
import numpy as np

from edge_sdk.core.errors import DataError
from edge_sdk.core.files import read_regular
from edge_sdk.core.frame import Image
from edge_sdk.sources.opencv import set_up_opencv
from edge_sdk_tools.datasets.image_header import MAX_PIXELS, read_size

MAX_BYTES = 1 << 30
"""Of one image file: 67 million pixels of 16 bits in four channels, and no compression, are 540 MB."""

_EVERY_NTH_HELD_OUT = 4


class ImageFile(msgspec.Struct, frozen=True):
    """One image file: path, SHA-256 and size.

    Attributes:
        path: of the file.
        sha256: of its bytes, in hex.
        size_wh: width and height as its header says, in pixels, turned as EXIF says: those of what `read` gives.
    """

    path: Path
    sha256: str
    size_wh: tuple[int, int]

    def data(self) -> bytes:
        """The file's bytes.

        Raises:
            DataError: when it is not there any more.
        """
        try:
            return read_regular(self.path, MAX_BYTES)
        except OSError as cause:
            raise DataError(f"{self.path}: cannot be read any more: {cause.strerror}") from cause

    def read(self) -> Image:
        """The picture as uint8 (H, W, 3), BGR, turned as EXIF says.

        Raises:
            DataError: when it is not there any more, or cannot be decoded.
        """
        image = decode_image(self.data())
        if image is None:
            raise DataError(f"{self.path}: cannot be decoded, expected a whole image; leave it out or copy it again")
        return image


class Skipped(msgspec.Struct, frozen=True):
    """A file that was left out, and why."""

    path: Path
    reason: str


class ImageSet(msgspec.Struct, frozen=True):
    """Images of different content, in order of their paths, and the files that were skipped."""

    images: tuple[ImageFile, ...]
    skipped: tuple[Skipped, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def unreadable(self) -> tuple[Path, ...]:
        """The paths of what was skipped."""
        return tuple(s.path for s in self.skipped)

    def without(self, other: ImageSet) -> ImageSet:
        """Return the images whose content is not in `other`."""
        return self.picked(self.places_without(other))

    def spread(self, count: int) -> ImageSet:
        """Return at most `count` images, evenly spread over the set."""
        return self if count >= len(self.images) else self.picked(self.places_spread(count))

    def hold_out(self) -> tuple[ImageSet, ImageSet]:
        """Split into (calibration, evaluation): every fourth image, and at least one, is held out."""
        held = set(range(_EVERY_NTH_HELD_OUT - 1, len(self.images), _EVERY_NTH_HELD_OUT)) or {len(self.images) - 1}
        kept = tuple(image for i, image in enumerate(self.images) if i not in held)
        return ImageSet(kept, self.skipped), ImageSet(tuple(self.images[i] for i in sorted(held)))

    def places_without(self, other: ImageSet) -> list[int]:
        """Indices of those whose content is not in `other`."""
        known = {image.sha256 for image in other.images}
        return [i for i, image in enumerate(self.images) if image.sha256 not in known]

    def places_spread(self, count: int) -> list[int]:
        """Indices of `count` images, evenly spread, the first and the last among them."""
        return [int(i) for i in np.linspace(0, len(self.images) - 1, count).round()]

    def picked(self, places: Sequence[int]) -> ImageSet:
        """The images at these indices, with all that was skipped."""
        return ImageSet(tuple(self.images[i] for i in places), self.skipped)


def decode_image(data: bytes) -> Image | None:
    """The picture as uint8 (H, W, 3), BGR, turned as EXIF says; None where OpenCV cannot read it."""
    if not data:
        return None
    set_up_opencv()  # silences OpenCV, because the caller reports skipped images
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        return None
    return None if image is None else image.astype(np.uint8, copy=False)


SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")
"""Of images that are read, in small letters."""

FOREIGN_SUFFIXES = (
    *(".heic", ".heif", ".avif", ".jxl", ".gif", ".tif", ".tiff", ".jp2", ".tga", ".exr", ".pgm", ".pbm", ".pnm"),
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"),
)
"""Suffixes of images that are not read but counted in reports."""


def is_candidate(path: Path) -> bool:
    """Whether the name is that of an image, be it of a format that is read or not."""
    suffix = path.suffix.lower()
    return suffix in SUFFIXES or suffix in FOREIGN_SUFFIXES


def inspect(path: Path, *, decode: bool) -> ImageFile | Skipped:
    """Look at one file."""
    suffix = path.suffix.lower()
    if suffix in FOREIGN_SUFFIXES:
        return Skipped(path, f"{suffix}: edge-sdk does not read it; convert it to JPEG or PNG")
    data = _read(path)
    if isinstance(data, str):
        return Skipped(path, data)
    size_wh = read_size(data)
    if size_wh is None:
        return Skipped(path, "not an image, or its header is damaged")
    if size_wh[0] * size_wh[1] > MAX_PIXELS:
        return Skipped(path, f"{size_wh[0]}x{size_wh[1]} pixels, more than {MAX_PIXELS // 10**6} million")
    if decode and decode_image(data) is None:
        return Skipped(path, "cannot be decoded, expected a whole image")
    return ImageFile(path, hashlib.sha256(data).hexdigest(), size_wh)


def _read(path: Path) -> bytes | str:
    """The file's bytes, or why there are none."""
    try:
        return read_regular(path, MAX_BYTES) or "an empty file"
    except OSError as cause:
        return f"cannot be read: {cause.strerror}"


def files_below(folder: Path) -> list[Path]:
    """Every file below `folder`, in order of their paths; hidden ones and what is in hidden folders left out.

    Links to folders are followed, each folder is entered once.

    Raises:
        DataError: when a folder cannot be read.
    """
    return sorted(_walk(folder), key=lambda path: path.parts)


def _walk(folder: Path) -> Iterator[Path]:
    entered: set[tuple[int, int]] = set()
    for root, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        status = Path(root).stat()
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in files if not name.startswith("."))


def subfolders(folder: Path) -> list[Path]:
    """The folders in `folder`, in order of their names, hidden ones left out.

    Raises:
        DataError: when it cannot be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and is_folder(path))
    except OSError as cause:
        _refuse(cause)


def is_file(path: Path) -> bool:
    """Whether a file is there; a name that no file system takes is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a folder is there; a name that no file system takes is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _refuse(cause: OSError) -> NoReturn:
    raise DataError(f"{cause.filename}: folder cannot be read: {cause.strerror}") from cause
