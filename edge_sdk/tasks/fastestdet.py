"""FastestDet: one box a cell of one level, with objectness and classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import Candidates, Floats, corner_boxes, level_size
from edge_sdk.tasks.outputs import Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.spec import TaskSpec

_STRIDE = 16


def read_fastestdet(size_wh: tuple[int, int], confidence: float, outputs: Sequence[Tensor]) -> Candidates:
    """Read float (1, 5 + classes, H, W): objectness 0-1, four numbers of the box, classes 0-1.

    Box centre = cell + tanh(xy) in cells, size = sigmoid(wh) in parts of the input. Source: dog-qiuqiu/FastestDet,
    example/onnx-runtime.
    """
    values: Floats = outputs[0][0]
    rows, columns = values.shape[1:]
    found = np.flatnonzero(values[0] >= np.float32(confidence))
    values = values.reshape(len(values), -1)[:, found]
    row, column = np.divmod(found, columns)
    boxes = np.tanh(values[1:5].T * np.array([1, 1, 0.5, 0.5], np.float32))
    boxes[:, :2] = (boxes[:, :2] + np.column_stack([column, row])) / np.array([columns, rows], np.float32)
    boxes[:, 2:] = boxes[:, 2:] / 2 + np.float32(0.5)
    boxes *= np.array(size_wh * 2, np.float32)
    return Candidates(corner_boxes(boxes), values[0] * values[5:].max(axis=0), values[5:].argmax(axis=0))


def _layouts(spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    columns, rows = level_size(spec.input.size_wh, _STRIDE)
    return [(ModelOutput((1, 5 + label_count, rows, columns), others=5),)]


FASTESTDET = Decoder(
    name="fastestdet",
    task="detection",
    layouts=_layouts,
    make=lambda spec, _count, _layout: partial(read_fastestdet, spec.input.size_wh, spec.thresholds.confidence),
    reads_all=True,
    usual_input={"resize": "stretch", "color": "BGR", "std": (255.0, 255.0, 255.0)},
    # A class map of the same shape comes from a convolution; this from parts that are activated each in its own way.
    is_shown=lambda seen: seen[0].operator == "Concat",
)
