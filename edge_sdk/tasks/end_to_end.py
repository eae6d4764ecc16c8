"""Detectors that suppress overlaps in their own graph, such as YOLOv10 and YOLO26: one row an object."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import Candidates, Floats
from edge_sdk.tasks.outputs import Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.spec import TaskSpec


class EndToEnd:
    """Reads rows, float (1, N, 6): left, top, right, bottom in input pixels, confidence 0-1, class id.

    Rows after the last object have confidence 0. A row whose class id no label has is no detection.
    """

    def __init__(self, label_count: int, confidence: float) -> None:
        self._label_count, self._confidence = label_count, confidence

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the one output of one frame."""
        rows: Floats = outputs[0][0]
        class_ids = np.rint(rows[:, 5])
        rows = rows[(rows[:, 4] >= self._confidence) & (class_ids >= 0) & (class_ids < self._label_count)]
        return Candidates(self.boxes(rows[:, :4]), rows[:, 4], np.rint(rows[:, 5]).astype(np.int64))

    def boxes(self, values: Floats) -> Floats:
        """Return left, top, width, height in input pixels of the rows' first four values, float32 (K, 4)."""
        boxes: Floats = values.copy()
        boxes[:, 2:] -= boxes[:, :2]
        return boxes


def _layouts(_spec: TaskSpec, _label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    return [(ModelOutput((1, "N", 6), None),)]


END_TO_END = Decoder(
    name="end_to_end",
    task="detection",
    layouts=_layouts,
    make=lambda spec, label_count, _layout: EndToEnd(label_count, spec.thresholds.confidence),
    reads_all=True,
    suppresses=False,
    box_axis=-1,
    usual_input={"std": (255.0, 255.0, 255.0)},
)
