"""CenterNet and CenterFace: a heatmap of the objects' centres, and maps with the box and landmarks of each centre."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import (
    NO_CANDIDATES,
    Candidates,
    Decode,
    Floats,
    Reader,
    corner_boxes,
    level_size,
    lowest_logit,
    sigmoid,
    sizes_of,
)
from edge_sdk.tasks.instances import with_keypoints
from edge_sdk.tasks.outputs import Decoder, Layout, ModelOutput, SeenOutput, Shape
from edge_sdk.tasks.spec import DetectionSpec, TaskSpec

_STRIDE = 4
_LANDMARKS = 5
_MOST_CELLS = 10_000  # the most confident cells of which peaks are sought; bounds the cost of a frame of noise
_AROUND = np.array(np.divmod(np.arange(9)[:, None], 3)) - 1  # rows down and columns right of a cell and its neighbours


def read_centerface(confidence: float, outputs: Sequence[Tensor]) -> Candidates:
    """Read heatmap float (1, 1, H, W), 0-1; scale (1, 2, H, W), height then width; offset (1, 2, H, W), y then x.

    Box centre = (cell + offset + 0.5) * 4, size = exp(scale) * 4. The heatmap may have several classes. An optional
    fourth output, float (1, 10, H, W), has y and x of five landmarks as fractions of the box, which become `extras`.
    """
    heat, scale, offset, *landmarks = (output[0].reshape(output.shape[1], -1) for output in outputs)
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
    boxes = corner_boxes(boxes)
    extras = None
    if landmarks:
        points = landmarks[0][:, found].T.reshape(-1, _LANDMARKS, 2)[:, :, ::-1]
        extras = (points * boxes[:, None, 2:] + boxes[:, None, :2]).reshape(len(boxes), -1)
    return Candidates(boxes, heat[class_ids, found], class_ids, extras=extras)


def read_centernet(confidence: float, are_logits: bool, outputs: Sequence[Tensor]) -> Candidates:
    """Read heatmap float (1, classes, H, W); size (1, 2, H, W), width then height; offset (1, 2, H, W), x then y.

    A cell is an object if none of its eight neighbours has a higher score for the class; overlaps are not suppressed.
    Box centre = (cell + offset) * 4, size = size * 4. Source: xingyizhou/CenterNet, `ctdet_decode`.
    """
    heat: Floats = outputs[0][0]
    rows, columns = heat.shape[1:]
    may_count = (heat >= (lowest_logit(confidence) if are_logits else np.float32(confidence))).reshape(len(heat), -1)
    cells = np.flatnonzero(may_count.any(axis=0))  # few of many: faster than a search in every class
    class_ids, places = np.divmod(np.flatnonzero(may_count[:, cells]), max(1, len(cells)))
    places = cells[places]
    if not len(places):
        return NO_CANDIDATES
    if len(places) > _MOST_CELLS:
        scores = heat.reshape(len(heat), -1)[class_ids, places]
        chosen = np.sort(np.argpartition(-scores, _MOST_CELLS)[:_MOST_CELLS])
        class_ids, places = class_ids[chosen], places[chosen]
    row, column = np.divmod(places, columns)
    down, right = _AROUND
    around = heat[class_ids, (row + down).clip(0, rows - 1), (column + right).clip(0, columns - 1)]
    scores = heat[class_ids, row, column]
    is_peak = scores == around.max(axis=0)
    class_ids, row, column, scores = (values[is_peak] for values in (class_ids, row, column, scores))
    size, offset = (output[0][:, row, column].T for output in outputs[1:3])
    boxes = np.hstack([np.column_stack([column, row]) + offset, size]) * np.float32(_STRIDE)
    confidences = sigmoid(scores) if are_logits else scores
    return Candidates(corner_boxes(boxes.astype(np.float32)), confidences, class_ids)


def _layouts(spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    width, height = level_size(spec.input.size_wh, _STRIDE)
    pair = ModelOutput((1, 2, height, width), None)
    return [(ModelOutput((1, label_count, height, width)), pair, pair)]


def _with_landmarks(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> Sequence[Layout]:
    [(heat, *pair)] = _layouts(spec, label_count, got)
    return [(heat, *pair, ModelOutput((1, 2 * _LANDMARKS, *heat.shape[2:]), None)), (heat, *pair)]


def _make_centerface(spec: TaskSpec, _label_count: int, layout: Layout) -> Decode | Reader:
    read = partial(read_centerface, spec.thresholds.confidence)
    return with_keypoints(read, _LANDMARKS, 2) if len(layout) == 4 else read


def _scores_of(seen: Sequence[SeenOutput]) -> DetectionSpec:
    """Tell logits from probabilities by the operator after the heatmap's convolution, which may be a sigmoid."""
    return DetectionSpec(scores="logits" if all(output.operator == "Conv" for output in seen) else "probabilities")


def _is_of_one_class(seen: Sequence[SeenOutput]) -> bool:
    return (seen[0].shape or (1, 1))[1] == 1 and not seen[0].name.startswith("hm")


CENTERFACE = Decoder(
    name="centerface",
    layouts=_with_landmarks,
    make=_make_centerface,
    usual_input={"resize": "stretch"},
    usual_labels=("face",),
    is_shown=_is_of_one_class,
)
CENTERNET = Decoder(
    name="centernet",
    layouts=_layouts,
    make=lambda spec, _count, _layout: partial(
        read_centernet, spec.thresholds.confidence, spec.detection.scores == "logits"
    ),
    suppresses=False,
    usual_input={"color": "BGR", "mean": (104.04, 113.985, 119.85), "std": (73.695, 69.87, 70.89)},
    is_shown=lambda seen: None if _is_of_one_class(seen) else True,
    section=_scores_of,
)
