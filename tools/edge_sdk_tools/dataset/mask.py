"""Masks: the class of every pixel of one image, in a PNG.

Owns the reading of one mask and of its header. Which image it belongs to is told by `masks`.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL.PngImagePlugin import PngImageFile

from edge_sdk.core.errors import DataError
from edge_sdk.core.files import open_regular, read_regular
from edge_sdk_tools.dataset.header import MAX_PIXELS

IGNORE = 255
"""In a mask: a pixel that counts neither for nor against; the value of PASCAL VOC and Cityscapes."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">8s8xIIBB")  # signature; IHDR: (length, name), width, height, bit depth, colour type
_GREY, _PALETTE = 0, 3
_MOST_BYTES = 1 << 28  # twice what the largest mask has without any compression
_KINDS = {2: "RGB colours", 4: "grey levels with transparency", 6: "RGB colours with transparency"}
_EXPECTED = "expected a PNG of 8-bit grey levels or of palette indices, one class id a pixel"


class MaskTruth(msgspec.Struct, frozen=True):
    """The class of every pixel, in a PNG that is read when it is asked for.

    Attributes:
        path: the PNG: 8-bit grey levels, or the indices of a palette.
        class_count: ids run from 0 to before this; `IGNORE` may stand beside them.
    """

    path: Path
    class_count: int = IGNORE

    def data(self) -> bytes:
        """The file's bytes.

        Raises:
            DataError: when it is not there any more.
        """
        try:
            return read_regular(self.path, _MOST_BYTES)
        except OSError as cause:
            raise DataError(f"{self.path}: mask cannot be read: {cause.strerror}") from cause

    def read(self) -> NDArray[np.uint8]:
        """The mask as uint8 (H, W): class ids, and `IGNORE`.

        Raises:
            DataError: when it is no such PNG, is damaged, or holds an id that is no class.
        """
        data = self.data()
        _size_of(data[: _HEADER.size], self.path)
        try:
            with PngImageFile(io.BytesIO(data)) as image:
                mask = np.array(image, np.uint8)
        except (OSError, ValueError, SyntaxError) as cause:
            raise DataError(f"{self.path}: mask cannot be decoded; copy or export it again") from cause
        wrong = mask[(mask >= self.class_count) & (mask != IGNORE)]
        if wrong.size:
            raise DataError(
                f"{self.path}: the mask holds class {wrong[0]}, expected 0 to {self.class_count - 1}, or {IGNORE} "
                "for what does not count"
            )
        return mask


def mask_size(path: Path) -> tuple[int, int]:
    """Width and height of a mask in pixels, from its header.

    Raises:
        DataError: when it is no PNG of class ids, or too large.
    """
    try:
        with open_regular(path) as file:
            head = file.read(_HEADER.size)
    except OSError as cause:
        raise DataError(f"{path}: mask cannot be read: {cause.strerror}") from cause
    return _size_of(head, path)


def _size_of(head: bytes, path: Path) -> tuple[int, int]:
    if len(head) < _HEADER.size or not head.startswith(_SIGNATURE):
        raise DataError(f"{path}: the mask is no PNG; {_EXPECTED}")
    _, width, height, bits, kind = _HEADER.unpack(head)
    # Pillow stretches grey levels of fewer bits to 0-255, and palettes it does not.
    if kind == _GREY and bits != 8:
        raise DataError(f"{path}: the mask holds {bits}-bit grey levels; {_EXPECTED}")
    if kind not in (_GREY, _PALETTE):
        raise DataError(f"{path}: the mask holds {_KINDS.get(kind, f'colours of unknown type {kind}')}; {_EXPECTED}")
    if width * height > MAX_PIXELS:
        raise DataError(f"{path}: the mask has {width}x{height} pixels, expected {MAX_PIXELS // 10**6} million or less")
    return width, height
