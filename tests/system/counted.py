"""Pictures whose number a detector of cells reads: which frame a result is of stands in the result itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

_RED_BGR = (140, 140, 255)
_GRID = 4


def counted_picture(number: int, side: int) -> np.ndarray:
    """uint8 (side, side, 3), BGR: cell i of the 4 x 4 is lit where bit i of the number, below 65536, is set."""
    cell = side // _GRID
    image = np.zeros((side, side, 3), np.uint8)
    for index in range(_GRID * _GRID):
        if number >> index & 1:
            row, column = divmod(index, _GRID)
            image[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell] = _RED_BGR
    return image


def counted_in(result: dict[str, Any]) -> int:
    """The number that was found in a picture."""
    width, height = result["frame"]["width"], result["frame"]["height"]
    number = 0
    for found in result["detections"]:
        left, top, right, bottom = found["box_xyxy"]
        column, row = (left + right) / 2 * _GRID // width, (top + bottom) / 2 * _GRID // height
        number |= 1 << int(row * _GRID + column)
    return number


def write_counted_video(path: Path, count: int, side: int = 512) -> Path:
    """Frame i carries i; in MJPEG, which takes a few milliseconds to decode."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 25.0, (side, side))
    for number in range(count):
        writer.write(counted_picture(number, side))
    writer.release()
    return path


def write_counted_folder(folder: Path, count: int, side: int = 512) -> Path:
    """Picture i, by name, carries i."""
    folder.mkdir()
    for number in range(count):
        cv2.imwrite(str(folder / f"{number:05}.jpg"), counted_picture(number, side))
    return folder
