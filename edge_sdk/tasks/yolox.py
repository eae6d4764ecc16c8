"""YOLOX as its exporter writes it by default: activated, but boxes still relative to their cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import STRIDES, Candidates, cells_of, corner_boxes, sizes_of
from edge_sdk.tasks.outputs import Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.spec import TaskSpec


class YoloX:
    """Reads rows, one a cell: float (1, N, 5 + classes), as x, y, w, h, objectness 0-1, classes 0-1.

    Box centre = (xy + cell) * stride, size = exp(wh) * stride, confidence = objectness * class.
    """

    def __init__(self, size_wh: tuple[int, int], confidence: float) -> None:
        self._confidence = confidence
        self._cells = cells_of(size_wh, STRIDES)

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the one output of one frame."""
        rows: NDArray[np.float32] = outputs[0][0]
        found = (rows[:, 4] >= self._confidence).nonzero()[0]
        rows, cells = rows[found], self._cells[found]
        strides = cells[:, 2:]
        boxes = rows[:, :4].copy()
        boxes[:, :2] += cells[:, :2]
        boxes[:, :2] *= strides
        boxes[:, 2:] = sizes_of(rows[:, 2:4]) * strides
        classes = rows[:, 5:]
        return Candidates(corner_boxes(boxes), rows[:, 4] * classes.max(axis=1), classes.argmax(axis=1))


def _layouts(spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    width, height = spec.input.size_wh
    cells = sum((width // stride) * (height // stride) for stride in STRIDES)
    return [(ModelOutput((1, cells, 5 + label_count), class_axis=2, others=5),)]


YOLOX = Decoder(
    name="yolox",
    task="detection",
    layouts=_layouts,
    make=lambda spec, _label_count, _layout: YoloX(spec.input.size_wh, spec.thresholds.confidence),
)
