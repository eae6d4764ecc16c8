"""Pictures that are turned, without memory of their own for each."""

from __future__ import annotations

from typing import Protocol, cast

import cv2
import numpy as np

from edge_sdk.camera.capture import Capture
from edge_sdk.frame import Image

_CODES = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_COUNTERCLOCKWISE}


class _Retrieves(Protocol):
    def retrieve_into(self, buffer: Image) -> Image | None: ...


class Rotation:
    """Turns what a capture decodes.

    Args:
        degrees: clockwise: 0, 90, 180 or 270.
    """

    def __init__(self, degrees: int) -> None:
        self._code = _CODES.get(degrees)
        self._upright: Image = np.zeros((1, 1, 3), np.uint8)

    def retrieve_into(self, capture: _Retrieves, buffer: Image) -> Image | None:
        """Decode the grabbed frame and turn it into `buffer`, or into a new array where the size differs."""
        if self._code is None:
            return capture.retrieve_into(buffer)
        image = capture.retrieve_into(self._upright)
        if image is None:
            return None
        self._upright = image
        return cast("Image", cv2.rotate(image, self._code, buffer))


class RotatedCapture:
    """A capture whose pictures are turned clockwise.

    Args:
        capture: what is turned.
        degrees: 90, 180 or 270.
    """

    def __init__(self, capture: Capture, degrees: int) -> None:
        self._capture, self._rotation = capture, Rotation(degrees)
        self.buffered_since_ns, self.fps, self.remarks = capture.buffered_since_ns, capture.fps, capture.remarks
        self.comes_with_next = capture.comes_with_next

    @property
    def stamp_ns(self) -> int | None:
        """See `Capture`."""
        return self._capture.stamp_ns

    def grab(self) -> bool:
        """Wait for the next frame; False when there is none."""
        return self._capture.grab()

    def retrieve_into(self, buffer: Image) -> Image | None:
        """Decode the grabbed frame and turn it into `buffer`, or into a new array where the size differs."""
        return self._rotation.retrieve_into(self._capture, buffer)

    def release(self) -> None:
        """Give everything back."""
        self._capture.release()


def rotated(capture: Capture, degrees: int) -> Capture:
    """The capture itself, or one whose pictures are turned clockwise by 90, 180 or 270 degrees."""
    return RotatedCapture(capture, degrees) if degrees else capture


def turned(image: Image, degrees: int) -> Image:
    """The picture itself, or a new one, turned clockwise by 90, 180 or 270 degrees."""
    return cast("Image", cv2.rotate(image, _CODES[degrees])) if degrees else image
