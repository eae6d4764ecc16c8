"""`Drawing` draws boxes, outlines and texts on a picture; every task draws its results with it.

Line widths and text sizes scale with the picture. A class has the same bright colour on every picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Image
from edge_sdk.core.opencv import cv2

Colour: TypeAlias = tuple[int, int, int]
"""BGR, 0-255."""

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_FAR_PX = 1e5  # coordinates are clipped here, because OpenCV takes 32-bit integers
_STRENGTH = 0.4  # opacity of colours blended over the picture
_TRIES = 4  # how many times its own height a tag may move down to avoid other tags
_REFERENCE_PX = 720  # shorter side of the picture for which the sizes below are given
_GOLDEN_RATIO = 0.618034  # hue step from class to class, in turns: neighbouring classes get distant hues


class Drawing:
    """Draws on one picture, in place.

    Args:
        image: uint8 (H, W, 3), BGR.
        name: returns the label of a class id.

    Attributes:
        line_px: width of lines, in pixels.
    """

    def __init__(self, image: Image, name: Callable[[int], str]) -> None:
        self.image, self.name = image, name
        factor: float = min(image.shape[:2]) / _REFERENCE_PX
        self._scale = min(max(0.75 * factor, 0.45), 3.0)
        self._text_px = max(1, round(1.5 * self._scale))
        self._margin_px = max(2, round(6 * self._scale))
        self._tags: list[tuple[int, int, int, int]] = []  # left, top, right and bottom of the tags so far
        self.line_px = max(1, round(3 * factor))

    @staticmethod
    def colour(class_id: int) -> Colour:
        """Return the colour of a class, BGR 0-255: constant, bright, and unlike that of neighbouring classes."""
        hue = (0.05 + class_id * _GOLDEN_RATIO) % 1.0
        hsv = np.array([[[int(hue * 180), 200, 240]]], np.uint8)
        blue, green, red = cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)[0, 0].tolist()
        return blue, green, red

    def box(self, corners: Sequence[int], colour: Colour) -> None:
        """Draw a rectangle from its left, top, right and bottom, in pixels."""
        x1, y1, x2, y2 = corners
        cv2.rectangle(self.image, (x1, y1), (x2, y2), colour, self.line_px, cv2.LINE_AA)

    def outline(self, corners: NDArray[np.float32], colour: Colour) -> None:
        """Draw a closed polygon, float32 (points, 2), in pixels; it may extend beyond the picture."""
        points = np.rint(corners).clip(-_FAR_PX, _FAR_PX).astype(np.int32)
        cv2.polylines(self.image, [points], True, colour, self.line_px, cv2.LINE_AA)

    def line(self, start_xy: tuple[int, int], end_xy: tuple[int, int], colour: Colour) -> None:
        """Draw a line between two points, in pixels."""
        cv2.line(self.image, start_xy, end_xy, colour, self.line_px, cv2.LINE_AA)

    def dot(self, at_xy: tuple[int, int], colour: Colour) -> None:
        """Draw a filled circle around a point, in pixels."""
        cv2.circle(self.image, at_xy, 2 * self.line_px, colour, cv2.FILLED, cv2.LINE_AA)

    def fill(self, outlines: Iterable[NDArray[np.float32]], colour: Colour) -> None:
        """Blend a colour over the inside of polygons, each float32 (points, 2), in pixels."""
        painted = self.image.copy()
        cv2.fillPoly(painted, [outline.astype(np.int32) for outline in outlines], colour)
        cv2.addWeighted(self.image, 1 - _STRENGTH, painted, _STRENGTH, 0, dst=self.image)

    def lay_over(self, colours: Image, where: NDArray[np.uint8]) -> None:
        """Blend `colours`, of the picture's size, over the picture where `where`, uint8 (H, W), is not 0."""
        cv2.copyTo(cv2.addWeighted(self.image, 1 - _STRENGTH, colours, _STRENGTH, 0), where, self.image)

    def column(self, lines: Iterable[tuple[str, Colour]]) -> None:
        """Write texts, each with its background colour, below each other from the top left to the middle."""
        y = self._margin_px
        for text, colour in lines:
            if y < self.image.shape[0] // 2:
                y = self.tag(text, (self._margin_px, y), colour, above=False)

    def tag(self, text: str, at_xy: tuple[int, int], colour: Colour, *, above: bool = True) -> int:
        """Write a text on a filled background inside the picture; return the y of its lower end, in pixels.

        The text is above the place if there is room, else below it, and moves down to avoid other tags. If they leave
        no room within reach, nothing is written.
        """
        height_px, width_px = int(self.image.shape[0]), int(self.image.shape[1])
        text, (text_w, text_h), below_px = self._fitted(text, width_px - 2 * self._margin_px)
        tag_w, tag_h = text_w + 2 * self._margin_px, text_h + below_px + self._margin_px
        y = at_xy[1] - tag_h if above and at_xy[1] >= tag_h else at_xy[1]
        x, y = max(0, min(at_xy[0], width_px - tag_w)), max(0, min(y, height_px - tag_h))
        free = (top for top in range(y, min(y + _TRIES * tag_h, height_px - tag_h) + 1, max(1, tag_h // 2)))
        found = next((top for top in free if not self._covers(x, top, x + tag_w, top + tag_h)), None)
        if found is None:
            return y
        y = found
        self._tags.append((x, y, x + tag_w, y + tag_h))
        cv2.rectangle(self.image, (x, y), (x + tag_w - 1, y + tag_h - 1), colour, cv2.FILLED)
        origin = (x + self._margin_px, y + tag_h - below_px - self._margin_px // 2)
        cv2.putText(self.image, text, origin, _FONT, self._scale, _readable_on(colour), self._text_px, cv2.LINE_AA)
        return y + tag_h

    def _covers(self, left: int, top: int, right: int, bottom: int) -> bool:
        return any(left < r and x < right and top < b and y < bottom for x, y, r, b in self._tags)

    def _fitted(self, text: str, room_px: int) -> tuple[str, Sequence[int], int]:
        """Shorten a text to `room_px`; return it with its width and height, and its depth below the baseline, in px."""
        size_wh, below_px = cv2.getTextSize(text, _FONT, self._scale, self._text_px)
        while size_wh[0] > room_px and len(text) > 1:
            text = text[: max(1, min(len(text) - 1, len(text) * room_px // size_wh[0]))]
            size_wh, below_px = cv2.getTextSize(text, _FONT, self._scale, self._text_px)
        return text, size_wh, below_px


def _readable_on(colour: Colour) -> Colour:
    """Return black or white, whichever contrasts more with a background colour, by its luma (ITU-R BT.601)."""
    blue, green, red = colour
    return (0, 0, 0) if 0.114 * blue + 0.587 * green + 0.299 * red > 128 else (255, 255, 255)
