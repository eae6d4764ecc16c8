"""Inspection: whether one file is an image that can be used, and if not, why.

Owns the reasons. A file is read once: hashed, looked at, and decoded where that is wanted.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from edge_sdk.core.files import read_regular
from edge_sdk_tools.dataset.header import MAX_PIXELS, read_size
from edge_sdk_tools.dataset.images import MAX_BYTES, ImageFile, Skipped
from edge_sdk_tools.dataset.images import decode as decode_image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")
"""Of images that are read, in small letters."""

FOREIGN_SUFFIXES = (
    *(".heic", ".heif", ".avif", ".jxl", ".gif", ".tif", ".tiff", ".jp2", ".tga", ".exr", ".pgm", ".pbm", ".pnm"),
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"),
)
"""Of images that are not read; they are counted, so that nobody wonders where they went."""


def is_candidate(path: Path) -> bool:
    """Whether the name is that of an image, be it of a format that is read or not."""
    suffix = path.suffix.lower()
    return suffix in SUFFIXES or suffix in FOREIGN_SUFFIXES


def inspect(path: Path, *, decode: bool) -> ImageFile | Skipped:
    """Look at one file.

    Args:
        path: of the file, whatever its suffix.
        decode: also decode it; without it a damaged image may pass, as only its header is looked at.
    """
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
