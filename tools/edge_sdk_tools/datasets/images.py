"""One image file, a set of files of different content, and whether a file is an image that can be used.

A file is read once: hashed, its size read from its header, and decoded where that is wanted. Pillow reads headers;
OpenCV decodes, as it does for models. Hidden files are left out, and a loop of links ends.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import struct
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import cv2
import msgspec
import numpy as np
from PIL import Image as PilImage
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ImageFile import ImageFile as PilFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.WebPImagePlugin import WebPImageFile

from edge_sdk.core.errors import DataError, raising
from edge_sdk.core.files import read_regular
from edge_sdk.core.frame import Image
from edge_sdk.sources.opencv import MAX_READ_PX, set_up_opencv

MAX_PIXELS = MAX_READ_PX
"""The most pixels of one image: decoded it takes three times as many bytes, and OpenCV decodes no larger ones."""

# Image.open would refuse what is large in its own words, by a limit that all of the process shares.
_READERS: tuple[tuple[bytes, Callable[[io.BytesIO], PilFile]], ...] = (
    (b"\xff\xd8\xff", JpegImageFile),
    (b"\x89PNG\r\n\x1a\n", PngImageFile),
    (b"RIFF", WebPImageFile),
    (b"BM", BmpImageFile),
    (b"P", PpmImageFile),
)
# What Pillow raises on damaged files; found by flipping bytes.
_DAMAGED = (OSError, ValueError, SyntaxError, KeyError, IndexError, TypeError, OverflowError, EOFError, struct.error)
_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)  # by a quarter; EXIF 2.32, 4.6.4 A


def read_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height in pixels, turned as EXIF says; None for another file, or a damaged header."""
    reader = next((reader for start, reader in _READERS if data.startswith(start)), None)
    if reader is None:
        return None
    if reader is WebPImageFile and math.prod(_webp_size(data)) > MAX_PIXELS:
        return _webp_size(data)  # Pillow's reader makes room for the whole canvas, or refuses it by its own limit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Pillow finds odd in metadata is nothing to a model
        try:
            with reader(io.BytesIO(data)) as image:
                width, height = image.size
                turned = _orientation(image.info.get("exif", b"")) in _TURNED
        except _DAMAGED:
            return None
    return (height, width) if turned else (width, height)


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return width and height of the canvas; RFC 9649 for VP8X and VP8L, RFC 6386 section 9.1 for VP8."""
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF


def _orientation(exif: bytes) -> object:
    tags = PilImage.Exif()
    try:
        tags.load(exif)
        return tags.get(_ORIENTATION)
    except _DAMAGED:
        return None


MAX_BYTES = 1 << 30
"""The most bytes of one image file: 67 million pixels of 16 bits in four channels, and no compression, are 540 MB."""

_EVERY_NTH_HELD_OUT = 4


class ImageFile(msgspec.Struct, frozen=True):
    """One image file: path, SHA-256 in hex, and the width and height that `read` gives: turned as EXIF says.

    `content` holds its bytes for machines that do not have the file.
    """

    path: Path
    sha256: str
    size_wh: tuple[int, int]
    content: bytes | None = None

    def data(self) -> bytes:
        """Return the file's bytes."""
        if self.content is not None:
            return self.content
        with raising(DataError, f"{self.path}: cannot be read any more"):
            return read_regular(self.path, MAX_BYTES)

    def read(self) -> Image:
        """Return the picture as uint8 (H, W, 3), BGR, turned as EXIF says."""
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

    def without(self, other: ImageSet) -> ImageSet:
        """Return the images whose content is not in `other`."""
        return self.picked(self.places_without(other))

    def spread(self, count: int) -> ImageSet:
        """Return at most `count` images, evenly spread over the set."""
        return self.picked(self.places_spread(count))

    def hold_out(self) -> tuple[ImageSet, ImageSet]:
        """Split into (calibration, evaluation): every fourth image, and at least one, is held out."""
        held = range(_EVERY_NTH_HELD_OUT - 1, len(self), _EVERY_NTH_HELD_OUT) or [len(self) - 1]
        return self.picked([i for i in range(len(self)) if i not in held]), ImageSet(self.picked(held).images)

    def places_without(self, other: ImageSet) -> list[int]:
        """Return the indices of the images whose content is not in `other`."""
        known = {image.sha256 for image in other.images}
        return [i for i, image in enumerate(self.images) if image.sha256 not in known]

    def places_spread(self, count: int) -> list[int]:
        """Return the indices of at most `count` images, evenly spread, the first and the last among them."""
        return [int(i) for i in np.linspace(0, len(self) - 1, min(count, len(self))).round()]

    def picked(self, places: Sequence[int]) -> ImageSet:
        """Return the images at these indices, with all that was skipped."""
        return ImageSet(tuple(self.images[i] for i in places), self.skipped)


def decode_image(data: bytes) -> Image | None:
    """Return the picture as uint8 (H, W, 3), BGR, turned as EXIF says; None where OpenCV cannot read it."""
    if not data:
        return None
    set_up_opencv()  # silences OpenCV, because the caller reports skipped images
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        return None
    return None if image is None else image.astype(np.uint8, copy=False)


SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")
"""Suffixes of images that are read, in lower case."""

FOREIGN_SUFFIXES = (
    *(".heic", ".heif", ".avif", ".jxl", ".gif", ".tif", ".tiff", ".jp2", ".tga", ".exr", ".pgm", ".pbm", ".pnm"),
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"),
)
"""Suffixes of images that are not read but counted in reports."""


def is_candidate(path: Path) -> bool:
    """Tell whether the name is that of an image, be it of a format that is read or not."""
    return path.suffix.lower() in (*SUFFIXES, *FOREIGN_SUFFIXES)


def inspect(path: Path, *, decode: bool) -> ImageFile | Skipped:
    """Hash one file and read its size; with `decode` it must be decodable too. Return the image, or why it is none."""
    suffix = path.suffix.lower()
    if suffix in FOREIGN_SUFFIXES:
        return Skipped(path, f"{suffix}: edge-sdk does not read it; convert it to JPEG or PNG")
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as cause:
        return Skipped(path, f"cannot be read: {cause.strerror}")
    if not data:
        return Skipped(path, "an empty file")
    size_wh = read_size(data)
    if size_wh is None:
        return Skipped(path, "not an image, or its header is damaged")
    if size_wh[0] * size_wh[1] > MAX_PIXELS:
        return Skipped(path, f"{size_wh[0]}x{size_wh[1]} pixels, more than {MAX_PIXELS // 10**6} million")
    if decode and decode_image(data) is None:
        return Skipped(path, "cannot be decoded, expected a whole image")
    return ImageFile(path, hashlib.sha256(data).hexdigest(), size_wh)


def files_below(folder: Path) -> list[Path]:
    """Return every file below `folder`, in order of their paths, without hidden files and what is in hidden folders.

    Links to folders are followed, each folder is entered once.
    """
    entered: set[tuple[int, int]] = set()
    found: list[Path] = []
    for root, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        status = Path(root).stat()
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root, name) for name in files if not name.startswith(".")]
    return sorted(found, key=lambda path: path.parts)


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in `folder`, in order of their names, without hidden ones."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and is_folder(path))
    except OSError as cause:
        _refuse(cause)


def is_file(path: Path) -> bool:
    """Tell whether a file is there; a name that no file system takes is none."""
    return os.path.isfile(path)  # noqa: PTH113 - pathlib's raises an error for such a name


def is_folder(path: Path) -> bool:
    """Tell whether a folder is there; a name that no file system takes is none."""
    return os.path.isdir(path)  # noqa: PTH112 - pathlib's raises an error for such a name


def _refuse(cause: OSError) -> NoReturn:
    raise DataError(f"{cause.filename}: folder cannot be read: {cause.strerror}") from cause
