"""Overlay: a class map painted over a picture, translucent.

Owns what is painted and how; which colour a class has is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from edge_sdk.frame import Image

_STRENGTH = 0.4  # of the colour; the rest is the picture
_PAINTED = 255


class Overlay:
    """Paints class maps; with a line in full colour where one class ends.

    Args:
        colours: BGR, one a class that is painted; None for one that is not. Ids beyond them are not painted either.
    """

    def __init__(self, colours: Sequence[tuple[int, int, int] | None]) -> None:
        self._colours = np.zeros((256, 1, 3), np.uint8)
        self._is_painted = np.zeros(256, np.uint8)
        for class_id, colour in enumerate(colours):
            if colour is not None:
                self._colours[class_id] = colour
                self._is_painted[class_id] = _PAINTED

    def paint(self, image: Image, class_map: NDArray[np.uint8], line_px: int) -> None:
        """Paint a class map over a picture, in place.

        Args:
            image: uint8 (H, W, 3), BGR.
            class_map: uint8 (H, W), the class of each pixel.
            line_px: width of the lines between classes, in pixels.
        """
        painted = cv2.LUT(class_map, self._is_painted)
        colours = cv2.applyColorMap(class_map, self._colours)
        cv2.copyTo(cv2.addWeighted(image, 1 - _STRENGTH, colours, _STRENGTH, 0), painted, image)
        # The largest id around a pixel less the smallest: above 0 where two classes meet.
        around = np.ones((line_px + 1, line_px + 1), np.uint8)
        borders = cv2.morphologyEx(class_map, cv2.MORPH_GRADIENT, around)
        cv2.copyTo(colours, cv2.bitwise_and(borders, painted), image)
