"""Pictures that carry a number as bars of brightness, readable after any lossy encoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from edge_sdk.camera import OpenedSource
from edge_sdk.frame import Frame, Image

BITS = 16


def numbered_image(number: int, size_wh: tuple[int, int] = (320, 240)) -> Image:
    """A picture, uint8 (H, W, 3), whose 16 vertical bars are the bits of `number`, the lowest first."""
    columns = (np.arange(size_wh[0]) * BITS) // size_wh[0]
    row = np.where((number >> columns) & 1, 235, 16).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(row[None, :, None], (size_wh[1], size_wh[0], 3)))


def number_in(image: Image) -> int:
    """The number that a picture carries."""
    width_px = image.shape[1]
    row = image[image.shape[0] // 2, :, 1]
    return sum(1 << bit for bit in range(BITS) if row[(2 * bit + 1) * width_px // (2 * BITS)] > 128)


def write_video(
    path: Path, numbers: Sequence[int], *, fps: float = 100.0, size_wh: tuple[int, int] = (320, 240)
) -> Path:
    """Write an MJPEG .avi, which OpenCV does without ffmpeg."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), fps, size_wh)
    assert writer.isOpened()
    for number in numbers:
        writer.write(numbered_image(number, size_wh))
    writer.release()
    return path


def write_images(folder: Path, names: Sequence[str]) -> None:
    """Make a folder of images that are numbered from 0."""
    folder.mkdir()
    for number, name in enumerate(names):
        assert cv2.imwrite(str(folder / name), numbered_image(number))


def drained(source: OpenedSource) -> list[Frame]:
    """Every frame until the end; the pictures are overwritten, the values stay."""
    frames = []
    while not source.ended:
        frame = source.latest(5)
        if frame is not None:
            assert number_in(frame.image) == frame.seq
            frames.append(frame)
    return frames
