"""Truths: what is known of one image.

Owns their shapes and units. Which truth belongs to which image is told by the readers.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk_tools.dataset.mask import MaskTruth


class ClassTruth(msgspec.Struct, frozen=True):
    """Attributes: class_id counts real classes from 0, as `Classification.class_ids`; a background is not counted."""

    class_id: int


class BoxTruth(msgspec.Struct, frozen=True, eq=False):
    """The objects in one image; it may have none.

    Attributes:
        boxes_xyxy: float64 (N, 4): pixels of the image, or 0-1 of its width and height where `relative`.
        class_ids: int64 (N,), lines of the labels from 0.
        crowd: bool (N,): a box around many objects; COCO's rules neither want it found nor punish what is found there.
        relative: the unit of `boxes_xyxy`.
    """

    boxes_xyxy: NDArray[np.float64]
    class_ids: NDArray[np.int64]
    crowd: NDArray[np.bool_]
    relative: bool

    def in_pixels(self, size_wh: tuple[int, int]) -> NDArray[np.float64]:
        """The boxes in pixels of the image.

        Args:
            size_wh: width and height of the decoded image, in pixels.

        Returns:
            float64 (N, 4), x1, y1, x2, y2, not clipped.
        """
        if not self.relative:
            return self.boxes_xyxy
        return self.boxes_xyxy * np.array([*size_wh, *size_wh], np.float64)


Truth: TypeAlias = ClassTruth | BoxTruth | MaskTruth


def same_truth(a: Truth | None, b: Truth | None) -> bool:
    """Whether two truths say the same; boxes in another order do not, masks are compared by their files' bytes."""
    if isinstance(a, BoxTruth) and isinstance(b, BoxTruth):
        pairs = ((a.boxes_xyxy, b.boxes_xyxy), (a.class_ids, b.class_ids), (a.crowd, b.crowd))
        return a.relative == b.relative and all(np.array_equal(x, y) for x, y in pairs)
    if isinstance(a, MaskTruth) and isinstance(b, MaskTruth):
        return a.path.read_bytes() == b.path.read_bytes()
    return a == b
