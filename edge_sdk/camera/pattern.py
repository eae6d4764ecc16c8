"""A camera that is none: a numbered, moving picture at a steady pace, to try things without a camera.

Sixteen bars show the frame's number in bits, the lowest on the left, and a square walks below them.
"""

from __future__ import annotations

import time

import numpy as np

from edge_sdk.frame import Image

_BITS = 16
_DARK, _LIGHT = 16, 235
_SQUARE_BGR = (40, 160, 240)


class Pattern:
    """A `Capture` of drawn pictures.

    Args:
        size_wh: pixels.
        fps: frames a second, 1 or more.
    """

    buffered_since_ns = None
    comes_with_next = False
    remarks: tuple[str, ...] = ()

    def __init__(self, size_wh: tuple[int, int], fps: float) -> None:
        self.fps = fps
        self._shape = size_wh[1], size_wh[0], 3
        columns = (np.arange(size_wh[0]) * _BITS) // size_wh[0]
        self._bits = (1 << columns).astype(np.uint16)
        self._row = np.zeros(size_wh[0], np.uint8)
        self._period_ns = round(1e9 / fps)
        self._number = -1
        self._due_ns = time.monotonic_ns() - self._period_ns
        self._square_px = max(1, min(size_wh) // 6)

    @property
    def stamp_ns(self) -> int:
        """When the frame was due."""
        return self._due_ns

    def grab(self) -> bool:
        """Wait for the next frame; those whose time went by meanwhile are left out, as a camera does."""
        now_ns = time.monotonic_ns()
        behind = max(0, now_ns - self._due_ns) // self._period_ns
        step = max(1, behind)
        self._number += step
        self._due_ns += step * self._period_ns
        time.sleep(max(0, self._due_ns - now_ns) / 1e9)
        return True

    def retrieve_into(self, buffer: Image) -> Image:
        """Draw the frame into `buffer`, or into a new array where the size differs."""
        image = buffer if buffer.shape == self._shape else np.empty(self._shape, np.uint8)
        np.multiply((self._bits & (self._number % (1 << _BITS))) != 0, _LIGHT - _DARK, out=self._row, casting="unsafe")
        self._row += _DARK
        image[:] = self._row[None, :, None]
        height, width, _ = self._shape
        side = self._square_px
        left = self._number * max(1, width // 100) % max(1, width - side)
        top = max(0, height * 3 // 4 - side // 2)
        image[top : top + side, left : left + side] = _SQUARE_BGR
        return image

    def release(self) -> None:
        """There is nothing to give back."""
