"""Detectors that need no suppression: the DETR family, and models that suppress overlaps in their own graph.

RT-DETR, D-FINE and RF-DETR (`detr`) have a fixed number of queries, each with a box and one score per class. The first
DETR and YOLOS add a class "no object" and use a softmax over all classes: `detr_softmax`. YOLOv10, YOLO26 and some
exports of DETR give one row per object: `end_to_end` with corners in pixels, `detr_end_to_end` with centre and size as
fractions of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import (
    STRIDES,
    Candidates,
    Floats,
    boxes_between,
    cell_count,
    corner_boxes,
    lowest_logit,
    sigmoid,
    softmax,
)
from edge_sdk.tasks.outputs import IMAGENET, UNIT, Decoder, Layout, ModelOutput, SeenOutput, Shape
from edge_sdk.tasks.spec import TaskSpec

_MOST_QUERIES = 1000  # more rows belong to detectors with one box per cell
_FIRST_QUERIES = 100  # number of queries of the first DETR and of YOLOS; later models have 300 and more
_COCO_AND_NONE = 92  # 91 ids of COCO and "no object"


class Detr:
    """Reads boxes (centre x, y, width, height as fractions of the input's width and height) and one score per class.

    Either boxes float (1, N, 4) and logits float (1, N, classes), whose sigmoid is the confidence; or both in one
    output, float (1, N, 4 + classes), whose scores are 0-1. Every class of a query that reaches the threshold is a
    detection, as in the authors' own postprocessing; no overlaps are suppressed.
    """

    def __init__(self, size_wh: tuple[int, int], confidence: float) -> None:
        self._size = np.array(size_wh * 2, np.float32)
        self._confidence = confidence

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the outputs of one frame."""
        if len(outputs) == 1:
            boxes, scores = outputs[0][0, :, :4], outputs[0][0, :, 4:]
            rows, class_ids = np.nonzero(scores >= np.float32(self._confidence))
            confidences: Floats = scores[rows, class_ids]
        else:
            boxes, logits = outputs[0][0], outputs[1][0]
            rows, class_ids = np.nonzero(logits >= lowest_logit(self._confidence))
            confidences = sigmoid(logits[rows, class_ids])
        return Candidates(corner_boxes(boxes[rows] * self._size), confidences, class_ids)


def read_softmax(size_wh: tuple[int, int], confidence: float, outputs: Sequence[Tensor]) -> Candidates:
    """Read boxes as `Detr` does, and logits float (1, N, classes + 1), whose last class is "no object".

    Each query gives at most one detection, of its most likely class, as in the authors' own postprocessing.
    """
    classes = softmax(outputs[1][0])[:, :-1]
    best = classes.max(axis=1)
    found = np.flatnonzero(best >= np.float32(confidence))
    boxes = outputs[0][0][found] * np.array(size_wh * 2, np.float32)
    return Candidates(corner_boxes(boxes), best[found], classes[found].argmax(axis=1))


def read_rows(
    label_count: int, confidence: float, to_boxes: Callable[[Floats], Floats], outputs: Sequence[Tensor]
) -> Candidates:
    """Read rows, float (1, N, 6 + extras): a box, confidence 0-1, class id; `to_boxes` gives `boxes_xywh` (K, 4).

    Rows after the last object have confidence 0. Rows whose class id has no label are dropped.
    """
    rows: Floats = outputs[0][0]
    class_ids = np.rint(rows[:, 5])
    rows = rows[(rows[:, 4] >= confidence) & (class_ids >= 0) & (class_ids < label_count)]
    return Candidates(to_boxes(rows[:, :4]), rows[:, 4], np.rint(rows[:, 5]).astype(np.int64), extras=rows[:, 6:])


def _make_rows_of_parts(spec: TaskSpec, label_count: int, _layout: Layout) -> Callable[[Sequence[Tensor]], Candidates]:
    size = np.array(spec.input.size_wh * 2, np.float32)
    return partial(read_rows, label_count, spec.thresholds.confidence, lambda values: corner_boxes(values * size))


def _layouts(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> Sequence[Layout]:
    """Accept any number of queries except the number of cells of detectors with one or three boxes per cell."""
    cells = cell_count(spec.input.size_wh, *STRIDES)
    sides = [shape[1] for shape in got if len(shape) == 3]
    counts = [n for n in sides if isinstance(n, int) and n <= _MOST_QUERIES and n not in (cells, 3 * cells)]
    layouts: list[Layout] = []
    for count in dict.fromkeys(counts or [300]):
        scores = ModelOutput((1, count, label_count), class_axis=2)
        layouts.append((ModelOutput((1, count, 4), None), scores))
        layouts.append((ModelOutput((1, count, 4 + label_count), class_axis=2, others=4),))
    return layouts


def _softmax_layouts(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> Sequence[Layout]:
    """Expect the two outputs of `detr`, with one more class for "no object"."""
    return [
        (layout[0], ModelOutput((1, layout[0].shape[1], label_count + 1), class_axis=2, others=1))
        for layout in _layouts(spec, label_count, got)
        if len(layout) == 2
    ]


def _has_no_object(seen: Sequence[SeenOutput]) -> bool:
    _, queries, classes = seen[1].shape or (0, 0, 0)
    return queries == _FIRST_QUERIES or classes == _COCO_AND_NONE


DETR = Decoder(
    name="detr",
    layouts=_layouts,
    make=lambda spec, _label_count, _layout: Detr(spec.input.size_wh, spec.thresholds.confidence),
    suppresses=False,
    usual_input={"resize": "stretch", **UNIT},
    # A softmax over whole rows would include the boxes; such an output has the characters of a text recognizer.
    is_shown=lambda seen: False if seen[0].operator == "Softmax" else None,
)
DETR_SOFTMAX = Decoder(
    name="detr_softmax",
    layouts=_softmax_layouts,
    make=lambda spec, _count, _layout: partial(read_softmax, spec.input.size_wh, spec.thresholds.confidence),
    suppresses=False,
    usual_input={"resize": "stretch", **IMAGENET},
    is_shown=_has_no_object,
)
END_TO_END = Decoder(
    name="end_to_end",
    layouts=lambda _spec, _label_count, _got: [(ModelOutput((1, "N", 6), None),)],
    make=lambda spec, count, _layout: partial(read_rows, count, spec.thresholds.confidence, boxes_between),
    reads_all=True,
    suppresses=False,
    box_axis=-1,
    usual_input=UNIT,
)
DETR_END_TO_END = Decoder(
    name="detr_end_to_end",
    layouts=END_TO_END.layouts,
    make=_make_rows_of_parts,
    reads_all=True,
    suppresses=False,
    usual_input=DETR.usual_input,
)
