"""How alike two models see an object beyond its box: its keypoints, its mask, or the corners of an oriented box.

All are 0 to 1, 1 where both see the same. What keeps its box and loses its pose has not been found again.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Detections, Masks

_COCO_SIGMAS = (26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89)  # thousandths, of 17 keypoints
_SEEN = 0.5  # confidence of a keypoint that is compared
_FILLED = 0.53  # share of a box that an object fills, where nothing says it


class Likeness(NamedTuple):
    """Of each object of one model, and each of the other: float64 (N, M), and its name for people."""

    name: str
    values: NDArray[np.float64]


def likeness_of(found: Detections, reference: Detections) -> Likeness | None:
    """Compare what two models found in one picture; None where they have boxes alone, or other details."""
    points, others = found.keypoints, reference.keypoints
    if points is not None and others is not None and points.shape[1] == others.shape[1]:
        return Likeness("keypoints of those matched (OKS)", _keypoints(points, others, reference.xyxy))
    mine, theirs = found.masks, reference.masks
    if mine is not None and theirs is not None and mine.values.shape[1:] == theirs.values.shape[1:]:
        return Likeness(
            "masks of those matched (IoU)", _masks(_cells(mine, found.xyxy), _cells(theirs, reference.xyxy))
        )
    if found.corners is not None and reference.corners is not None:
        return Likeness("oriented boxes of those matched (IoU)", _corners(found.corners, reference.corners))
    return None


def _keypoints(
    found: NDArray[np.float32], reference: NDArray[np.float32], boxes_xyxy: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Object keypoint similarity, as COCO defines it, over the points that the reference is sure of."""
    points = reference.astype(np.float64)
    count = points.shape[1]
    sigmas = np.array(_COCO_SIGMAS) / 1000 if count == len(_COCO_SIGMAS) else np.full(count, 1 / count)
    area = _FILLED * (boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]).prod(axis=1).astype(np.float64)
    squares = ((found[:, None, :, :2] - points[None, :, :, :2]) ** 2).sum(axis=3)
    likely = np.exp(-squares / (8 * sigmas**2 * np.maximum(area, 1)[:, None]))
    is_seen = points[:, :, 2] >= _SEEN
    is_seen |= ~is_seen.any(axis=1, keepdims=True)
    values: NDArray[np.float64] = (likely * is_seen).sum(axis=2) / is_seen.sum(axis=1)
    return values


def _masks(found: NDArray[np.float32], reference: NDArray[np.float32]) -> NDArray[np.float64]:
    """Intersection over union of float32 (N, cells) and (M, cells), which are 1 where an object is."""
    both = (found @ reference.T).astype(np.float64)
    either = found.sum(axis=1)[:, None] + reference.sum(axis=1) - both
    values: NDArray[np.float64] = np.divide(both, either, out=np.ones_like(both), where=either > 0)
    return values


def _cells(masks: Masks, boxes_xyxy: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cells of masks that lie within the objects' boxes."""
    y, x = (np.arange(side) + 0.5 for side in masks.values.shape[1:])
    own = masks.geometry
    x, y = (x - own.offset_x) / own.scale_x, (y - own.offset_y) / own.scale_y
    left, top, right, bottom = boxes_xyxy.T[:, :, None]
    columns, rows = (x >= left) & (x < right), (y >= top) & (y < bottom)
    inside = (masks.values > 0) & rows[:, :, None] & columns[:, None, :]
    cells: NDArray[np.float32] = inside.reshape(len(inside), -1).astype(np.float32)
    return cells


def _corners(found: NDArray[np.float32], reference: NDArray[np.float32]) -> NDArray[np.float64]:
    """Intersection over union of the polygons."""
    values = np.zeros((len(found), len(reference)))
    for i, j in np.ndindex(*values.shape):
        both, _ = cv2.intersectConvexConvex(found[i], reference[j])
        either = cv2.contourArea(found[i]) + cv2.contourArea(reference[j]) - both
        values[i, j] = both / either if either > 0 else 0.0
    return values
