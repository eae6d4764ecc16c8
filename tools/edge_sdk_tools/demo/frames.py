"""Pictures for the build: frames spread over a video, in two folders that share no picture.

Owns which frames are taken, and the folders in the cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import cv2
import msgspec
import numpy as np

from edge_sdk.core.errors import DataError, OutputError
from edge_sdk.core.frame import Image
from edge_sdk_tools.demo.media import Media

CALIBRATION_FRAMES = 48
EVALUATION_FRAMES = 32
_PATTERN = ("calibration", "evaluation", "calibration", "evaluation", "calibration")  # 48 to 32
_FORMAT = "1"  # in the folder's name: a changed choice of frames gets a new folder


class Images(msgspec.Struct, frozen=True):
    """Folders of pictures: INT8 scales are taken from one and compared with FP32 on the other."""

    calibration: Path
    evaluation: Path


def write_images(media: Media, cache: Path) -> Images:
    """Take frames for calibration and evaluation, once.

    Args:
        media: its calibration video and pictures.
        cache: its root.

    Raises:
        DataError: the video cannot be decoded.
        OutputError: the cache cannot be written.
    """
    choice = f"{_FORMAT}-{CALIBRATION_FRAMES}-{EVALUATION_FRAMES}-{cv2.__version__}"
    folder = cache / "images" / hashlib.sha256(choice.encode()).hexdigest()[:12]
    if not folder.is_dir():
        partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
        try:
            _write(media, partial)
            _settle(partial, folder)
        except OSError as cause:
            raise OutputError(f"{folder}: cannot be written: {cause.strerror or cause}") from cause
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return Images(folder / "calibration", folder / "evaluation")


def _write(media: Media, folder: Path) -> None:
    """The two purposes alternate over the whole video, so that both see all of it."""
    for name in ("calibration", "evaluation"):
        (folder / name).mkdir(parents=True)
    total, places = _count(media.calibration_video), CALIBRATION_FRAMES + EVALUATION_FRAMES
    wanted = {_spread(place, places, total): _PATTERN[place % len(_PATTERN)] for place in range(places)}
    for index, image in read_frames(media.calibration_video, set(wanted)):
        name = wanted[index]
        _save(folder / name / f"frame_{index:05d}.png", image)
    for picture in media.pictures:
        shutil.copyfile(picture, folder / "calibration" / picture.name)


def read_frames(video: Path, wanted: set[int]) -> Iterator[tuple[int, Image]]:
    """Decode a video from its start and hand out some frames.

    Args:
        video: a file that OpenCV reads.
        wanted: indexes from 0.

    Yields:
        Index and picture, uint8 (H, W, 3), BGR; the caller may keep it.

    Raises:
        DataError: the video ends before the last one, or cannot be opened.
    """
    capture = cv2.VideoCapture(str(video))
    try:
        # Decoding from the start: seeking by index is off by some frames in several containers.
        for index in range(max(wanted) + 1):
            if not capture.grab():
                raise DataError(f"{video}: ends at frame {index}, expected {max(wanted) + 1}")
            if index in wanted:
                yield index, np.asarray(capture.retrieve()[1], np.uint8)
    finally:
        capture.release()


def _count(video: Path) -> int:
    capture = cv2.VideoCapture(str(video))
    count = max(0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
    capture.release()
    if count < CALIBRATION_FRAMES + EVALUATION_FRAMES:
        raise DataError(f"{video}: has {count} frames, expected {CALIBRATION_FRAMES + EVALUATION_FRAMES} or more")
    return count


def _spread(place: int, places: int, total: int) -> int:
    """The middle of the place-th of `places` equal parts."""
    return (2 * place + 1) * total // (2 * places)


def _save(path: Path, image: Image) -> None:
    if not cv2.imwrite(str(path), image):
        raise OSError(f"{path.name} cannot be written")


def _settle(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError:
        # Another demo was faster: its folder holds the same.
        if not folder.is_dir():
            raise
