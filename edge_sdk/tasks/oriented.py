"""Detectors of oriented boxes: centre, size and an angle, of YOLOv8, YOLO11 and YOLO26.

A result has the corners of each object, and the upright box that encloses them, by which events and figures count it.
Overlaps are judged as Ultralytics does: by the distance of the normal distributions that the boxes stand for (ProbIoU,
Murrugarra-Llerena et al., arXiv 2106.06072), where a box is hidden by any stronger one, also by a hidden one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Prepared, Tensor
from edge_sdk.tasks.boxes import Candidates, Floats, corner_boxes
from edge_sdk.tasks.detr import END_TO_END, read_rows
from edge_sdk.tasks.outputs import Decoder, ModelOutput
from edge_sdk.tasks.spec import Thresholds
from edge_sdk.tasks.yolo import floored_cells, read_yolov8

_EPSILON = 1e-7  # as in Ultralytics' `batch_probiou`
_APART_PX = 1e5  # between the boxes of one class and of the next
_CORNERS = 8  # x and y of four


class ReadOriented:
    """Reads boxes as another reader does, of which `extras` is the angle in radians, clockwise, float32 (N, 1)."""

    def __init__(self, read: Callable[[Sequence[Tensor]], Candidates]) -> None:
        self._read, self.details = read, ReadCorners()

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the outputs of one frame: boxes that enclose the objects, and the objects' corners as `extras`."""
        found = self._read(outputs)
        if not len(found.confidences) or found.extras is None:
            return found
        half = found.boxes_xywh[:, 2:] / 2
        turned = np.column_stack([np.cos(found.extras), np.sin(found.extras)])
        along, across = half[:, :1] * turned, half[:, 1:] * turned[:, ::-1] * np.array([-1, 1], np.float32)
        centres = found.boxes_xywh[:, :2] + half
        left, right = centres - along, centres + along
        corners = np.stack([left - across, right - across, right + across, left + across], axis=1)
        low, high = corners.min(axis=1), corners.max(axis=1)
        boxes = np.hstack([low, high - low])
        return Candidates(boxes, found.confidences, found.class_ids, extras=corners.reshape(-1, _CORNERS))


class ReadSuppressed(ReadOriented):
    """Reads oriented boxes whose overlaps are still to be suppressed."""

    def keep(self, candidates: Candidates, thresholds: Thresholds) -> NDArray[np.int64]:
        """Keep what overlaps no stronger box of its class by a ProbIoU of more than `thresholds.iou`."""
        assert candidates.extras is not None
        corners = candidates.extras.reshape(-1, 4, 2)
        along, across = corners[:, 1] - corners[:, 0], corners[:, 3] - corners[:, 0]
        wide, high = ((along**2 + across**2) / 12).T  # variances of x and of y, in square pixels
        mixed = (along[:, 0] * along[:, 1] + across[:, 0] * across[:, 1]) / 12  # covariances
        own = np.maximum(wide * high - mixed**2, 0)
        x, y = ((corners[:, 0] + corners[:, 2]) / 2).T
        # ProbIoU = 1 - sqrt(1 - exp(-distance)): what overlaps by more lies nearer than this.
        limit = -math.log(1 + _EPSILON - (1 - thresholds.iou) ** 2)
        # Only boxes can whose centres are near enough: |a - b|^2 < reach of a + reach of b.
        reach = 4 * limit * (wide + high)
        one, other = _near(candidates.class_ids * _APART_PX + x, math.sqrt(max(0.0, 2 * reach.max())))
        dx, dy = x[one] - x[other], y[one] - y[other]
        near = np.flatnonzero(dx**2 + dy**2 < reach[one] + reach[other])
        one, other, dx, dy = one[near], other[near], dx[near], dy[near]
        a, b, c = wide[one] + wide[other], high[one] + high[other], mixed[one] + mixed[other]
        area = a * b - c**2
        distance = ((a * dy**2 + b * dx**2) / 4 - c * dx * dy / 2) / (area + _EPSILON)
        distance += np.log(area / (4 * np.sqrt(own[one] * own[other]) + _EPSILON) + _EPSILON) / 2
        order: NDArray[np.int64] = np.argsort(-candidates.confidences, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        is_hidden = np.zeros(len(order), np.bool_)
        is_hidden[np.maximum(rank[one], rank[other])[distance < limit]] = True
        kept: NDArray[np.int64] = order[~is_hidden]
        return kept


def _near(places: NDArray[np.float64], reach: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of all pairs of float64 (N,) that lie at most `reach` apart, each pair once."""
    order = places.argsort()
    ends = np.searchsorted(places[order], places[order] + reach, side="right")
    counts = ends - np.arange(len(order)) - 1  # how many follow each within reach
    first = np.arange(len(order)).repeat(counts)
    within = np.arange(len(first)) - (counts.cumsum() - counts).repeat(counts)
    return order[first], order[first + 1 + within]


class ReadCorners:
    """Reads the corners of the objects that remain."""

    width = _CORNERS

    def __call__(self, _outputs: Sequence[Tensor], extras: Floats, prepared: Prepared) -> dict[str, Any]:
        """Return `corners` of float32 (N, 8)."""
        return {"corners": prepared.geometry.points_to_frame(extras.reshape(-1, 4, 2).copy())}


YOLOV8_OBB = Decoder(
    name="yolov8_obb",
    task="detection",
    layouts=lambda spec, count, _got: [(ModelOutput((1, 5 + count, floored_cells(spec.input.size_wh)), others=5),)],
    make=lambda spec, count, _layout: ReadSuppressed(
        partial(read_yolov8, spec.thresholds.confidence, class_count=count)
    ),
    said="obb",
    usual_input=END_TO_END.usual_input,
)
END_TO_END_OBB = Decoder(
    name="end_to_end_obb",
    task="detection",
    layouts=lambda _spec, _count, _got: [(ModelOutput((1, "N", 7), None),)],
    make=lambda spec, count, _layout: ReadOriented(partial(read_rows, count, spec.thresholds.confidence, corner_boxes)),
    suppresses=False,
    said="obb",
    usual_input=END_TO_END.usual_input,
)
