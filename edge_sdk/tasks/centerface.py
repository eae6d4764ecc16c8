"""CenterFace: a heatmap of the faces' centres, and the size and offset of the face around each.

Its landmarks are not read: a result holds boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import NO_CANDIDATES, Candidates, corner_boxes, level_size, sizes_of
from edge_sdk.tasks.outputs import Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.spec import TaskSpec

_STRIDE = 4


def read_centerface(confidence: float, outputs: Sequence[Tensor]) -> Candidates:
    """Read heatmap float (1, 1, H, W), 0-1; scale (1, 2, H, W), height then width; offset (1, 2, H, W), y then x.

    Box centre = (cell + offset + 0.5) * 4, size = exp(scale) * 4. A heatmap of several classes is read as well.
    """
    heat, scale, offset = (output[0].reshape(output.shape[1], -1) for output in outputs)
    places = np.flatnonzero(heat >= np.float32(confidence))
    if not len(places):
        return NO_CANDIDATES
    class_ids, found = np.divmod(places, heat.shape[1])
    row, column = np.divmod(found, outputs[0].shape[3])
    boxes = np.empty((len(found), 4), np.float32)
    boxes[:, 0] = column + offset[1, found]
    boxes[:, 1] = row + offset[0, found]
    boxes[:, :2] += np.float32(0.5)
    boxes[:, 2:] = sizes_of(scale[::-1, found].T)
    boxes *= np.float32(_STRIDE)
    return Candidates(corner_boxes(boxes), heat[class_ids, found], class_ids)


def _layouts(spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    width, height = level_size(spec.input.size_wh, _STRIDE)
    pair = ModelOutput((1, 2, height, width), None)
    return [(ModelOutput((1, label_count, height, width)), pair, pair)]


CENTERFACE = Decoder(
    name="centerface",
    task="detection",
    layouts=_layouts,
    make=lambda spec, _label_count, _layout: partial(read_centerface, spec.thresholds.confidence),
)
