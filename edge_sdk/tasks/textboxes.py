"""Detectors of lines of text whose output is a map of probabilities (DB, as PaddleOCR's): a box around each line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import MAX_CANDIDATES, NO_CANDIDATES, Candidates
from edge_sdk.tasks.oriented import ReadCorners
from edge_sdk.tasks.outputs import COLUMNS, ROWS, Decoder, Layout, ModelOutput
from edge_sdk.tasks.spec import TaskSpec, Thresholds

_LEAST_PROBABILITY = 0.3  # of a cell that belongs to a line
_GROWTH = 1.5  # the map shows the inner part of a line: its box grows by this much of its area over its perimeter
_LEAST_CELLS = 3, 5  # the shorter side of a box before and after that
_CORNERS = 8  # x and y of four


class ReadTextBoxes:
    """Reads float (1, 1, H, W), 0-1: how probably a cell lies in the inner part of a line of text.

    A line is a region of cells above 0.3. Its box is the smallest around them, which may be turned, and its confidence
    their mean within that. Source: PaddleOCR 2.7, ppocr/postprocess/db_postprocess.py.
    """

    def __init__(self, input_wh: tuple[int, int], confidence: float) -> None:
        self._input_wh, self._confidence, self.details = input_wh, confidence, ReadCorners()

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the output of one frame: boxes that enclose the lines, and the lines' corners as `extras`."""
        from edge_sdk.core.opencv import cv2

        cells = outputs[0].reshape(outputs[0].shape[-2:])
        regions, _ = cv2.findContours(
            (cells > _LEAST_PROBABILITY).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE
        )
        rects = [cv2.minAreaRect(region) for region in regions[:MAX_CANDIDATES]]
        rects = [rect for rect in rects if min(rect[1]) >= _LEAST_CELLS[0]]
        found, confidences = [], []
        for (centre, (width, height), angle), confidence in zip(rects, _means_within(cells, rects), strict=True):
            grown = _GROWTH * width * height / (width + height)  # on both sides of each side
            if confidence >= self._confidence and min(width, height) + grown >= _LEAST_CELLS[1]:
                found.append(cv2.boxPoints((centre, (width + grown, height + grown), angle)))
                confidences.append(confidence)
        if not found:
            return NO_CANDIDATES
        corners = _clockwise(np.array(found, np.float32))
        corners *= np.array(self._input_wh, np.float32) / np.array(cells.shape[::-1], np.float32)
        low, high = corners.min(axis=1), corners.max(axis=1)
        return Candidates(
            np.hstack([low, high - low]),
            np.array(confidences, np.float32),
            np.zeros(len(found), np.int64),
            extras=corners.reshape(-1, _CORNERS),
        )


def _means_within(cells: Tensor, rects: Sequence[Any]) -> list[float]:
    """Return the mean of float32 (H, W) within each of OpenCV's turned rectangles."""
    from edge_sdk.core.opencv import cv2

    corners = np.array([cv2.boxPoints(rect) for rect in rects], np.float32).reshape(-1, 4, 2)
    last = cells.shape[1] - 1, cells.shape[0] - 1
    low = np.clip(np.floor(corners.min(axis=1)), 0, last)
    high = np.clip(np.ceil(corners.max(axis=1)), 0, last)
    inner = (corners - low[:, np.newaxis]).astype(np.int32)
    means = []
    for quad, (left, top), (right, bottom) in zip(
        inner, low.astype(int).tolist(), high.astype(int).tolist(), strict=True
    ):
        within = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
        cv2.fillPoly(within, [quad], 1)
        means.append(cv2.mean(cells[top : bottom + 1, left : right + 1], within)[0])
    return means


def _clockwise(corners: Tensor) -> Tensor:
    """Order float32 (N, 4, 2): of the left two and the right two the upper left comes first, then clockwise."""
    by_x = np.take_along_axis(corners, corners[..., :1].argsort(axis=1, kind="stable"), axis=1)
    left, right = (
        np.take_along_axis(side, side[..., 1:].argsort(axis=1, kind="stable"), axis=1)
        for side in (by_x[:, :2], by_x[:, 2:])
    )
    return np.stack([left[:, 0], right[:, 0], right[:, 1], left[:, 1]], axis=1)


def _make(spec: TaskSpec, label_count: int, _layout: Layout) -> ReadTextBoxes:
    if label_count != 1:
        raise ModelError(f"decoder db: finds lines of text, expected one label, got {label_count}")
    return ReadTextBoxes(spec.input.size_wh, spec.thresholds.confidence)


DB = Decoder(
    name="db",
    task="detection",
    layouts=lambda _spec, _count, _got: [(ModelOutput((1, 1, ROWS, COLUMNS), None),)],
    make=_make,
    suppresses=False,
    usual_input={"color": "BGR", "mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)},
    usual_thresholds=Thresholds(0.6),
    usual_labels=("text",),
    is_vague=True,
    is_shown=lambda seen: seen[0].operator == "Sigmoid" or None,
)
