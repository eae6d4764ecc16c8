"""JPEGs that say how they are to be turned."""

from __future__ import annotations


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    """The JPEG with an EXIF block that holds one entry."""
    entry = b"\x01\x12\x00\x03\x00\x00\x00\x01" + bytes([0, orientation]) + b"\x00\x00"
    exif = b"Exif\x00\x00MM\x00\x2a\x00\x00\x00\x08\x00\x01" + entry + b"\x00\x00\x00\x00"
    return jpeg[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + jpeg[2:]
