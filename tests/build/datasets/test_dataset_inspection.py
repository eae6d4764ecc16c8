"""One file: whether it is an image that can be used, how large it is, and if not, why."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_sdk.errors import DataError
from edge_sdk_tools.dataset import find_images, read_dataset
from tests.support.projects import picture, write_pictures


def _encoded(kind: str, orientation: int = 1) -> bytes:
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    tags = {} if kind in ("BMP", "PPM") else {"exif": exif.tobytes()}
    Image.fromarray(picture(0, width=30, height=20)).save(buffer, kind, **tags)
    return buffer.getvalue()


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _huge_png(width: int, height: int) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + _chunk(b"IDAT", zlib.compress(bytes(5000))) + _chunk(b"IEND", b"")


def _huge_jpeg() -> bytes:
    data = _encoded("JPEG")
    place = data.index(b"\xff\xc0") + 5
    return data[:place] + struct.pack(">HH", 40000, 50000) + data[place + 4 :]


def _huge_webp(**kind: object) -> bytes:
    """A small picture whose header says 16383 x 16382."""
    buffer = io.BytesIO()
    Image.new("RGB", (30, 20)).save(buffer, "WEBP", **kind)
    data = bytearray(buffer.getvalue())
    if data[12:16] == b"VP8X":
        data[24:30] = (16382).to_bytes(3, "little") + (16381).to_bytes(3, "little")
    elif data[12:16] == b"VP8L":
        data[21:25] = (16382 | 16381 << 14).to_bytes(4, "little")
    else:
        data[26:30] = struct.pack("<HH", 16383, 16382)
    return bytes(data)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_the_size_is_that_of_the_picture_as_exif_turns_it(tmp_path: Path, kind: str, orientation: int) -> None:
    (tmp_path / "a.jpg").write_bytes(_encoded(kind, orientation))
    [image] = find_images([tmp_path], decode=False).images
    assert image.size_wh == (image.read().shape[1], image.read().shape[0])
    assert image.size_wh == ((20, 30) if orientation > 4 else (30, 20))


def test_exif_after_the_pixels_of_a_png_turns_it_too(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data, end = _encoded("PNG"), _chunk(b"IEND", b"")
    plain = data[: data.index(b"eXIf") - 4] + data[data.index(b"IDAT") - 4 :]
    late = plain.removesuffix(end) + _chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")) + end
    (tmp_path / "a.png").write_bytes(late)
    [image] = find_images([tmp_path], decode=False).images
    assert image.size_wh == (image.read().shape[1], image.read().shape[0]) == (20, 30)


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\x7f\xff"])
def test_damaged_exif_turns_nothing(tmp_path: Path, exif: bytes) -> None:
    buffer = io.BytesIO()
    Image.fromarray(picture(0, width=30, height=20)).save(buffer, "JPEG", exif=exif)
    (tmp_path / "a.jpg").write_bytes(buffer.getvalue())
    [image] = find_images([tmp_path]).images
    assert image.size_wh == (30, 20)


@pytest.mark.parametrize("kind", ["BMP", "PPM"])
def test_formats_without_exif(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"a.{kind}").write_bytes(_encoded(kind))
    [image] = find_images([tmp_path]).images
    assert image.size_wh == (30, 20)


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.heic", b"x", ".heic: edge-sdk does not read it; convert it to JPEG or PNG"),
        ("a.GIF", b"x", ".gif: edge-sdk does not read it; convert it to JPEG or PNG"),
        ("a.tiff", b"x", ".tiff: edge-sdk does not read it; convert it to JPEG or PNG"),
        ("a.avif", b"x", ".avif: edge-sdk does not read it; convert it to JPEG or PNG"),
        ("a.jxl", b"x", ".jxl: edge-sdk does not read it; convert it to JPEG or PNG"),
        ("a.jpg", b"", "an empty file"),
        ("a.jpg", b"\xff\xd8\xff", "not an image, or its header is damaged"),
        ("a.png", b"<html>404</html>", "not an image, or its header is damaged"),
        ("a.png", _encoded("PNG")[:20], "not an image, or its header is damaged"),
        ("a.webp", _encoded("WEBP")[:40], "not an image, or its header is damaged"),
        ("a.ppm", b"P6 0 0 255\n", "not an image, or its header is damaged"),
        ("a.png", _huge_png(40000, 40000), "40000x40000 pixels, more than 67 million"),
        ("a.png", _huge_png(8192, 8193), "8192x8193 pixels, more than 67 million"),
        ("a.jpg", _huge_jpeg(), "50000x40000 pixels, more than 67 million"),
        ("a.webp", _huge_webp(), "16383x16382 pixels, more than 67 million"),
        ("a.webp", _huge_webp(lossless=True), "16383x16382 pixels, more than 67 million"),
        ("a.webp", _huge_webp(exif=_encoded("JPEG")[20:60]), "16383x16382 pixels, more than 67 million"),
        ("a.ppm", b"P6 30000 30000 255\n", "30000x30000 pixels, more than 67 million"),
    ],
)
def test_what_cannot_be_used_is_skipped_with_its_reason(
    tmp_path: Path, name: str, data: bytes, reason: str, decode: bool
) -> None:
    write_pictures(tmp_path / "good", 1)
    (tmp_path / name).write_bytes(data)
    images = find_images([tmp_path], decode=decode)
    assert len(images) == 1
    assert [(s.path, s.reason) for s in images.skipped] == [(tmp_path / name, reason)]


def test_a_large_image_within_the_limit_passes_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(_huge_png(8192, 8192))
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        [image] = find_images([tmp_path], decode=False).images
    assert image.size_wh == (8192, 8192)
    assert warned == []
    assert limit == Image.MAX_IMAGE_PIXELS


def test_files_that_are_no_files_are_skipped(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, 1)
    os.mkfifo(folder / "pipe.jpg")
    (folder / "nothing.jpg").symlink_to("nowhere.jpg")
    (folder / "itself.jpg").symlink_to("itself.jpg")
    with (folder / "sparse.png").open("wb") as file:
        file.truncate(2_000_000_000)
    assert {s.path.name: s.reason for s in find_images([folder]).skipped} == {
        "pipe.jpg": "cannot be read: it is a pipe, expected a regular file",
        "nothing.jpg": "cannot be read: No such file or directory",
        "itself.jpg": "cannot be read: Too many levels of symbolic links",
        "sparse.png": "cannot be read: more than 1024 MiB, expected a smaller file",
    }


def test_every_flipped_byte_of_a_header_gives_an_image_or_a_reason(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(300):
        data = bytearray(_encoded(("JPEG", "PNG", "WEBP", "BMP", "PPM")[number % 5], 6))
        data[random.integers(0, min(len(data), 200))] = random.integers(0, 256)
        (tmp_path / f"{number:03}.jpg").write_bytes(data)
    images = find_images([tmp_path], decode=False)
    duplicates = read_dataset(tmp_path, ["cat"], "detection").duplicates
    assert len(images) + len(images.skipped) + duplicates == 300
    assert images.skipped
    assert all(skipped.reason for skipped in images.skipped)


def test_where_nothing_can_be_used_the_first_reason_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.heic").write_bytes(b"x")
    (tmp_path / "b.jpg").write_bytes(b"x")
    with pytest.raises(DataError, match=r"no usable images in it, 2 files were skipped; .*a\.heic: \.heic: "):
        find_images([tmp_path])
