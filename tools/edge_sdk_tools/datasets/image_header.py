"""Headers: how large an image says it is, before anything of it is decoded.

The module sets the limit on pixels. Pillow reads the headers; OpenCV decodes images for models, in `images`.
"""

from __future__ import annotations

import io
import math
import struct
import warnings
from collections.abc import Callable

from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.WebPImagePlugin import WebPImageFile

from edge_sdk.sources.opencv import MAX_READ_PX

MAX_PIXELS = MAX_READ_PX
"""Of one image: decoded it takes three times as many bytes, and OpenCV decodes no larger ones."""

# Image.open would refuse what is large in its own words, by a limit that all of the process shares.
_READERS: tuple[tuple[bytes, Callable[[io.BytesIO], ImageFile]], ...] = (
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
    """Width and height in pixels, as OpenCV decodes it: turned as EXIF says.

    Returns:
        None where it is no image of a format that is read, or its header is damaged.
    """
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
                turned = _orientation(image.info.get("exif") or _late_exif(data)) in _TURNED
        except _DAMAGED:
            return None
    return (height, width) if turned else (width, height)


def _webp_size(data: bytes) -> tuple[int, int]:
    """Width and height of the canvas; RFC 9649 for VP8X and VP8L, RFC 6386 section 9.1 for VP8."""
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF


def _late_exif(data: bytes) -> bytes:
    """The EXIF of a PNG that stands after its pixels: OpenCV obeys it, Pillow sees it only when it decodes."""
    place = data.rfind(b"eXIf") if data.startswith(b"\x89PNG") else -1
    return b"" if place < 0 else data[place + 4 :]


def _orientation(exif: bytes) -> object:
    tags = Image.Exif()
    try:
        tags.load(exif)
        return tags.get(_ORIENTATION)
    except _DAMAGED:
        return None
