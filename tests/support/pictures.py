"""Pictures that carry a number, an orientation, or cells that a detector counts."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge_sdk.core.frame import Image

# Pictures that carry a number as bars of brightness, readable after any lossy encoding.

BITS = 16


def numbered_image(number: int, size_wh: tuple[int, int] = (320, 240)) -> Image:
    """A picture, uint8 (H, W, 3), whose 16 vertical bars are the bits of `number`, the lowest first."""
    columns = (np.arange(size_wh[0]) * BITS) // size_wh[0]
    row = np.where((number >> columns) & 1, 235, 16).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(row[None, :, None], (size_wh[1], size_wh[0], 3)))


def number_in(image: Image) -> int:
    width_px = image.shape[1]
    row = image[image.shape[0] // 2, :, 1]
    return sum(1 << bit for bit in range(BITS) if row[(2 * bit + 1) * width_px // (2 * BITS)] > 128)


def write_video(
    path: Path, numbers: Sequence[int], *, fps: float = 100.0, size_wh: tuple[int, int] = (320, 240)
) -> Path:
    return write_frames(path, (numbered_image(number, size_wh) for number in numbers), fps)


def write_frames(path: Path, images: Iterable[np.ndarray], fps: float, codec: str = "MJPG") -> Path:
    """Write a video; MJPEG in .avi is what OpenCV writes without ffmpeg."""
    writer = None
    for image in images:
        writer = writer or cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), fps, image.shape[1::-1])
        writer.write(image)
    assert writer
    writer.release()
    return path


def write_images(folder: Path, names: Sequence[str]) -> None:
    folder.mkdir()
    for number, name in enumerate(names):
        assert cv2.imwrite(str(folder / name), numbered_image(number))


# JPEGs that say how they are to be turned.


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    entry = b"\x01\x12\x00\x03\x00\x00\x00\x01" + bytes([0, orientation]) + b"\x00\x00"
    exif = b"Exif\x00\x00MM\x00\x2a\x00\x00\x00\x08\x00\x01" + entry + b"\x00\x00\x00\x00"
    return jpeg[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + jpeg[2:]


# Pictures with lit cells, which a detector of cells finds: each result contains the number of its frame.

_GRID = 4


def counted_picture(number: int, side: int) -> np.ndarray:
    """uint8 (side, side, 3), BGR: cell i of the 4 x 4 is lit where bit i of the number, below 65536, is set."""
    cell = side // _GRID
    image = np.zeros((side, side, 3), np.uint8)
    for index in range(_GRID * _GRID):
        if number >> index & 1:
            row, column = divmod(index, _GRID)
            image[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell] = (140, 140, 255)  # red
    return image


def counted_in(result: dict[str, Any]) -> int:
    width, height = result["frame"]["width"], result["frame"]["height"]
    number = 0
    for found in result["detections"]:
        left, top, right, bottom = found["box_xyxy"]
        column, row = (left + right) / 2 * _GRID // width, (top + bottom) / 2 * _GRID // height
        number |= 1 << int(row * _GRID + column)
    return number


def write_counted_folder(folder: Path, count: int, side: int = 512) -> Path:
    folder.mkdir()
    for number in range(count):
        cv2.imwrite(str(folder / f"{number:05}.jpg"), counted_picture(number, side))
    return folder
