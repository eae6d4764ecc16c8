"""NanoDet, NanoDet-Plus and PicoDet: class scores, and for each side of a box a distribution of its distance.

As in generalized focal loss, the distance is the mean of 0, 1, ..., reg_max strides weighted by a softmax.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import NO_CANDIDATES, STRIDES, Candidates, Floats, best_classes, cell_count, cells_of, rows_of
from edge_sdk.tasks.outputs import Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.spec import TaskSpec

_FOUR_STRIDES = (8, 16, 32, 64)


class NanoDet:
    """Reads scores 0-1 of every class, and 4 * (reg_max + 1) logits: distances to the left, top, right and bottom.

    Either two outputs per level, the scores of all levels first: float (N, classes) or (1, N, classes), then
    (N, 4 * (reg_max + 1)); or a single output: float (1, N, classes + 4 * (reg_max + 1)). NanoDet-Plus and PicoDet have
    a fourth level; NanoDet-Plus measures distances from a cell's upper left corner, the others from its centre.

    Args:
        reg_max: the largest distance, in strides.
        middle: the point of a cell from which distances count, in cells from its upper left corner.
    """

    def __init__(
        self,
        size_wh: tuple[int, int],
        class_count: int,
        reg_max: int,
        confidence: float,
        strides: Sequence[int],
        middle: float,
    ) -> None:
        self._confidence = np.float32(confidence)
        self._classes = class_count
        self._cells = cells_of(size_wh, strides)
        self._cells[:, :2] += middle
        self._cells[:, :2] *= self._cells[:, 2:]
        self._steps = np.arange(reg_max + 1, dtype=np.float32)
        counts = [cell_count(size_wh, stride) for stride in strides]
        self._first = np.cumsum([0, *counts[:-1]]).tolist()

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the outputs of one frame; collect the cells above the threshold of all levels before computing boxes."""
        parts = []
        for first, scores, sides in self._levels(outputs):
            may_count = scores >= self._confidence
            may_count[:, self._classes :] = False  # comparing distances too costs less than leaving gaps
            found = rows_of(may_count)
            if len(found):
                parts.append((scores[found], sides[found], self._cells[first + found]))
        if not parts:
            return NO_CANDIDATES
        scores, sides, cells = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Candidates(self._boxes(sides, cells), *best_classes(scores[:, : self._classes]))

    def _levels(self, outputs: Sequence[Tensor]) -> list[tuple[int, Floats, Floats]]:
        """Return the first cell of each level, its scores (N, classes or more) and sides (N, 4 * (reg_max + 1))."""
        if len(outputs) == 1:
            rows = outputs[0][0]
            return [(0, rows, rows[:, self._classes :])]
        levels = len(outputs) // 2
        rows = [output.reshape(-1, output.shape[-1]) for output in outputs]
        return list(zip(self._first, rows[:levels], rows[levels:], strict=True))

    def _boxes(self, sides: Floats, cells: Floats) -> Floats:
        """Convert distance logits (K, 4 * (reg_max + 1)) and cells (K, 3) to boxes (K, 4): left, top, width, height."""
        powers = np.ascontiguousarray(sides.reshape(-1, len(self._steps)).T)  # reductions over rows are fast
        powers -= powers.max(axis=0)
        np.exp(powers, out=powers)
        distances = (self._steps @ powers / powers.sum(axis=0)).reshape(-1, 4) * cells[:, 2:]
        boxes: Floats = np.empty((len(sides), 4), np.float32)
        np.subtract(cells[:, :2], distances[:, :2], out=boxes[:, :2])
        np.add(distances[:, :2], distances[:, 2:], out=boxes[:, 2:])
        return boxes


def _layouts(spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    input_wh, sides = spec.input.size_wh, 4 * (spec.detection.reg_max + 1)
    layouts: list[Layout] = []
    for strides in (_FOUR_STRIDES, STRIDES):
        levels = [cell_count(input_wh, stride) for stride in strides]
        layouts += [
            (*(ModelOutput((n, label_count)) for n in levels), *(ModelOutput((n, sides), None) for n in levels)),
            (
                *(ModelOutput((1, n, label_count), class_axis=2) for n in levels),
                *(ModelOutput((1, n, sides), None) for n in levels),
            ),
            (ModelOutput((1, sum(levels), label_count + sides), class_axis=2, others=sides),),
        ]
    return layouts


def _make(spec: TaskSpec, label_count: int, layout: Layout) -> NanoDet:
    size_wh, confidence = spec.input.size_wh, spec.thresholds.confidence
    is_plus = len(layout) == 1 and layout[0].shape[1] == cell_count(size_wh, *_FOUR_STRIDES)
    strides = _FOUR_STRIDES if is_plus or len(layout) == 2 * len(_FOUR_STRIDES) else STRIDES
    return NanoDet(size_wh, label_count, spec.detection.reg_max, confidence, strides, 0.0 if is_plus else 0.5)


NANODET = Decoder(
    name="nanodet",
    layouts=_layouts,
    make=_make,
    usual_input={
        "resize": "stretch",
        "color": "BGR",
        "mean": (103.53, 116.28, 123.675),
        "std": (57.375, 57.12, 58.395),
    },
)
