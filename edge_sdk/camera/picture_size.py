"""How many pixels a picture has, read from its first bytes, so that none is decoded that takes too much memory.

OpenCV has a limit of its own, `OPENCV_IO_MAX_IMAGE_PIXELS`, which it reads when it is loaded: a program that imports
cv2 before edge_sdk has that of OpenCV, a gigapixel.
"""

from __future__ import annotations

import re
from typing import cast

import cv2
import numpy as np

from edge_sdk.frame import Image

MOST_SENT_PX = 1 << 25
"""Of a picture that a camera sends, or of a film: 7680x4320 are a little less. Five pictures are held at once."""
MOST_READ_PX = 1 << 26
"""Of an image file: photos of telephones and camera modules have up to 64 million."""

_SIZED_JPEG = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15 of ITU-T T.81, which tell the size
_BARE_JPEG = frozenset({0x00, 0x01, *range(0xD0, 0xD8)})  # a byte 255 that is data, TEM and RST0 to RST7: no length
_ENDS_JPEG = frozenset({0xD8, 0xD9, 0xDA})  # SOI, EOI and SOS, before which the size has to come
_JPEG_HEAD = 1 << 18  # bytes, with a thumbnail and a colour profile
_PORTABLE = re.compile(rb"P[1-6](?:\s+(?:#[^\n]*\n\s*)*)(\d{1,9})(?:\s+(?:#[^\n]*\n\s*)*)(\d{1,9})\s")
_PORTABLE_HEAD = 4096  # bytes, with comments


def decode(data: bytes | memoryview, most_px: int) -> Image | None:
    """Decode a JPEG, PNG, BMP, WebP or PNM.

    Args:
        data: the file.
        most_px: the most pixels that it may have.

    Returns:
        uint8 (H, W, 3), BGR; None where it cannot be read or is too large.
    """
    size_wh = picture_size(data)
    if size_wh is None or not 0 < size_wh[0] * size_wh[1] <= most_px:
        return None
    try:
        return cast("Image | None", cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR))
    except cv2.error:
        return None


def picture_size(data: bytes | memoryview) -> tuple[int, int] | None:
    """Width and height in pixels, by the header of a picture; None where it is of no kind that `decode` knows."""
    data = memoryview(data)
    head = bytes(data[:32])
    if head.startswith(b"\xff\xd8"):
        return _jpeg_size(data)
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return _big(head[16:20]), _big(head[20:24])
    if head.startswith(b"BM"):
        return _bmp_size(head)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp_size(head)
    found = _PORTABLE.match(bytes(data[:_PORTABLE_HEAD]))
    return (int(found[1]), int(found[2])) if found else None


def _jpeg_size(data: memoryview) -> tuple[int, int] | None:
    """Goes from marker to marker, as decoders do, which skip what is none."""
    head, at = data[:_JPEG_HEAD], 2
    while at < len(head):
        if head[at] != 0xFF:
            at += max(0, head[at:].tobytes().find(b"\xff")) or len(head)
        while at < len(head) and head[at] == 0xFF:
            at += 1
        if at + 8 > len(head) or head[at] in _ENDS_JPEG:
            return None
        if head[at] in _SIZED_JPEG:
            return _big(head[at + 6 : at + 8]), _big(head[at + 4 : at + 6])
        at += 1 if head[at] in _BARE_JPEG else 1 + _big(head[at + 1 : at + 3])
    return None


def _bmp_size(head: bytes) -> tuple[int, int]:
    if _little(head[14:18]) == 12:  # OS/2's header
        return _little(head[18:20]), _little(head[20:22])
    return _little(head[18:22]), abs(int.from_bytes(head[22:26], "little", signed=True))


def _webp_size(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8 ":
        return _little(head[26:28]) & 0x3FFF, _little(head[28:30]) & 0x3FFF
    if kind == b"VP8L":
        bits = _little(head[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        return _little(head[24:27]) + 1, _little(head[27:30]) + 1
    return None


def _big(data: bytes | memoryview) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
