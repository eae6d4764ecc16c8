"""Detectors of oriented boxes: centre, size and angle of YOLOv8, YOLO11 and YOLO26; and of lines of text (DB).

A result has the corners of each object and the enclosing upright box, which events and metrics use. Overlaps are
suppressed as by Ultralytics: by ProbIoU, which compares boxes as normal distributions (Murrugarra-Llerena et al., arXiv
2106.06072); a box is suppressed by any stronger box, even by one that is itself suppressed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Prepared, Tensor
from edge_sdk.tasks.boxes import (
    MAX_CANDIDATES,
    NO_CANDIDATES,
    Candidates,
    Decode,
    Floats,
    Keep,
    Reader,
    corner_boxes,
    pairs_within,
)
from edge_sdk.tasks.detr import read_rows
from edge_sdk.tasks.outputs import COLUMNS, IMAGENET, ROWS, UNIT, Decoder, Layout, ModelOutput, check_one_label
from edge_sdk.tasks.spec import TaskSpec, Thresholds
from edge_sdk.tasks.yolo import floored_cells, read_yolov8

_EPSILON = 1e-7  # as in Ultralytics' `batch_probiou`
_APART_PX = 1e5  # offset in x between the boxes of consecutive classes, so that classes are never neighbours
_CORNERS = 8  # x and y of four corners
_LEAST_PROBABILITY = 0.3  # least probability of a cell that belongs to a line of text
_GROWTH = 1.5  # the map shows the inner part of a line: its box grows by this much of its area over its perimeter
_LEAST_CELLS = 3, 5  # least length in cells of the shorter side of a line's box, before and after it grows


def read_oriented(decode: Decode, outputs: Sequence[Tensor]) -> Candidates:
    """Read oriented boxes with `decode`, whose `extras` are the angles in radians, clockwise, float32 (N, 1).

    Returns:
        The upright enclosing boxes, with the corners of the oriented boxes as `extras`.
    """
    found = decode(outputs)
    if not len(found.confidences) or found.extras is None:
        return found
    sizes = found.boxes_xywh[:, 2:]
    corners = _corners_of(found.boxes_xywh[:, :2] + sizes * np.float32(0.5), sizes, found.extras)
    return _enclosing(corners, found.confidences, found.class_ids)


def _enclosing(corners: Floats, confidences: Floats, class_ids: NDArray[np.int64]) -> Candidates:
    """Return the upright boxes around float32 (N, 4, 2), with the corners as `extras`."""
    points = np.ascontiguousarray(corners.swapaxes(0, 1))  # a reduction over few neighbouring numbers is slow
    low, high = points.min(axis=0), points.max(axis=0)
    return Candidates(np.hstack([low, high - low]), confidences, class_ids, extras=corners.reshape(-1, _CORNERS))


def keep_oriented(candidates: Candidates, thresholds: Thresholds) -> NDArray[np.int64]:
    """Keep boxes whose ProbIoU with every stronger box of their class is at most `thresholds.iou`."""
    assert candidates.extras is not None
    corners = candidates.extras.reshape(-1, 4, 2)
    along, across = corners[:, 1] - corners[:, 0], corners[:, 3] - corners[:, 0]
    wide, high = ((along**2 + across**2) / 12).T  # variances of x and of y, in square pixels
    mixed = (along[:, 0] * along[:, 1] + across[:, 0] * across[:, 1]) / 12  # covariances
    own = np.maximum(wide * high - mixed**2, 0)
    x, y = ((corners[:, 0] + corners[:, 2]) / 2).T
    # ProbIoU = 1 - sqrt(1 - exp(-distance)): boxes with a ProbIoU above the threshold have a distance below the limit.
    limit = -math.log(1 + _EPSILON - (1 - thresholds.iou) ** 2)
    # The distance is below the limit only if the centres are near: |a - b|^2 < reach of a + reach of b.
    reach = 4 * limit * (wide + high)
    places = candidates.class_ids * _APART_PX + x
    found = pairs_within(places, places + math.sqrt(max(0.0, 2 * reach.max())))
    assert found is not None
    one, other = found
    dx, dy = x[one] - x[other], y[one] - y[other]
    is_near = dx**2 + dy**2 < reach[one] + reach[other]
    near = np.flatnonzero(is_near & (candidates.class_ids[one] == candidates.class_ids[other]))
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


def _read_corners(_outputs: Sequence[Tensor], extras: Floats, prepared: Prepared) -> dict[str, Any]:
    """Return `corners`, float32 (N, 4, 2) in frame pixels, from extras, float32 (N, 8) in input pixels."""
    return {"corners": prepared.geometry.points_to_frame(extras.reshape(-1, 4, 2).copy())}


def _with_corners(decode: Decode, keep: Keep | None = None) -> Reader:
    return Reader(decode, _read_corners, _CORNERS, keep)


def read_text_boxes(input_wh: tuple[int, int], least: float, outputs: Sequence[Tensor]) -> Candidates:
    """Read float (1, 1, H, W), 0-1: the probability that a cell lies in the inner part of a line of text.

    A line is a connected region of cells above 0.3. Its box is the smallest oriented box around the region; its
    confidence is the mean of the cells in this box. Source: PaddleOCR 2.7, ppocr/postprocess/db_postprocess.py.

    Returns:
        The upright enclosing boxes, with the corners of the oriented boxes as `extras`.
    """
    from edge_sdk.core.opencv import cv2

    cells = outputs[0].reshape(outputs[0].shape[-2:])
    inner = (cells > _LEAST_PROBABILITY).view(np.uint8)
    regions, _ = cv2.findContours(inner, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    found = [(*centre, *size, angle) for centre, size, angle in map(cv2.minAreaRect, regions[:MAX_CANDIDATES])]
    rects = np.array(found, np.float32).reshape(-1, 5)
    rects = rects[rects[:, 2:4].min(axis=1) >= _LEAST_CELLS[0]]
    centres, sizes, angles = rects[:, :2], rects[:, 2:4], np.deg2rad(rects[:, 4:])
    confidences = _means_within(cells, _corners_of(centres, sizes, angles))
    # Added to width and height: half of it at each end.
    sizes += _GROWTH * sizes.prod(axis=1, keepdims=True) / sizes.sum(axis=1, keepdims=True)
    chosen = (confidences >= least) & (sizes.min(axis=1) >= _LEAST_CELLS[1])
    if not chosen.any():
        return NO_CANDIDATES
    corners = _clockwise(_corners_of(centres[chosen], sizes[chosen], angles[chosen]))
    corners *= np.array(input_wh, np.float32) / np.array(cells.shape[::-1], np.float32)
    return _enclosing(corners, confidences[chosen], np.zeros(len(corners), np.int64))


def _corners_of(centres: Floats, sizes: Floats, angles: Floats) -> Floats:
    """Return the corners of boxes, float32 (N, 4, 2), clockwise from the box's own top left.

    Args:
        centres: float32 (N, 2), x and y.
        sizes: float32 (N, 2), width and height.
        angles: float32 (N, 1), radians, clockwise.
    """
    turned = np.hstack([np.cos(angles), np.sin(angles)]) * np.float32(0.5)
    along, across = turned * sizes[:, :1], turned[:, ::-1] * sizes[:, 1:] * np.array([-1, 1], np.float32)
    left, right = centres - along, centres + along
    return np.stack([left - across, right - across, right + across, left + across], axis=1)


def _means_within(cells: Tensor, corners: Floats) -> Floats:
    """Return the mean of the cells, float32 (H, W), within each of N boxes, float32 (N, 4, 2): float32 (N,)."""
    from edge_sdk.core.opencv import cv2

    last = cells.shape[1] - 1, cells.shape[0] - 1
    low = np.clip(np.floor(corners.min(axis=1)), 0, last).astype(np.int32)
    high = np.clip(np.ceil(corners.max(axis=1)), 0, last).astype(np.int32) + 1
    inner = (corners - low[:, np.newaxis]).astype(np.int32)
    means = []
    for (left, top), (right, bottom), points in zip(low.tolist(), high.tolist(), inner, strict=True):
        within = cv2.fillPoly(np.zeros((bottom - top, right - left), np.uint8), [points], 1)
        means.append(cv2.mean(cells[top:bottom, left:right], within)[0])
    return np.array(means, np.float32)


def _clockwise(corners: Tensor) -> Tensor:
    """Order the corners of boxes, float32 (N, 4, 2), clockwise from the upper of the two leftmost ones."""
    by_x = np.take_along_axis(corners, corners[..., :1].argsort(axis=1, kind="stable"), axis=1)
    left, right = (
        np.take_along_axis(side, side[..., 1:].argsort(axis=1, kind="stable"), axis=1)
        for side in (by_x[:, :2], by_x[:, 2:])
    )
    return np.stack([left[:, 0], right[:, 0], right[:, 1], left[:, 1]], axis=1)


def _make_text_boxes(spec: TaskSpec, label_count: int, _layout: Layout) -> Reader:
    check_one_label("db", "lines of text", label_count)
    return _with_corners(partial(read_text_boxes, spec.input.size_wh, spec.thresholds.confidence))


def _make_v8(spec: TaskSpec, count: int, _layout: Layout) -> Reader:
    read = partial(read_yolov8, spec.thresholds.confidence, class_count=count)
    return _with_corners(partial(read_oriented, read), keep_oriented)


def _make_rows(spec: TaskSpec, count: int, _layout: Layout) -> Reader:
    read = partial(read_rows, count, spec.thresholds.confidence, corner_boxes)
    return _with_corners(partial(read_oriented, read))


YOLOV8_OBB = Decoder(
    name="yolov8_obb",
    layouts=lambda spec, count, _got: [(ModelOutput((1, 5 + count, floored_cells(spec.input.size_wh)), others=5),)],
    make=_make_v8,
    said="obb",
    usual_input=UNIT,
)
END_TO_END_OBB = Decoder(
    name="end_to_end_obb",
    layouts=lambda _spec, _count, _got: [(ModelOutput((1, "N", 7), None),)],
    make=_make_rows,
    suppresses=False,
    said="obb",
    usual_input=UNIT,
)
DB = Decoder(
    name="db",
    layouts=lambda _spec, _count, _got: [(ModelOutput((1, 1, ROWS, COLUMNS), None),)],
    make=_make_text_boxes,
    suppresses=False,
    usual_input={"color": "BGR", **IMAGENET},
    usual_thresholds=Thresholds(0.6),
    usual_labels=("text",),
    is_vague=True,
    is_shown=lambda seen: seen[0].operator == "Sigmoid" or None,
)
