"""Detectors of faces: CenterFace, YuNet and SCRFD. Their landmarks are not read: a result holds boxes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import (
    NO_CANDIDATES,
    STRIDES,
    Candidates,
    cell_count,
    cells_of,
    corner_boxes,
    level_size,
    sizes_of,
)
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


def _centerface_layouts(spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    width, height = level_size(spec.input.size_wh, _STRIDE)
    pair = ModelOutput((1, 2, height, width), None)
    return [(ModelOutput((1, label_count, height, width)), pair, pair)]


CENTERFACE = Decoder(
    name="centerface",
    task="detection",
    layouts=_centerface_layouts,
    make=lambda spec, _label_count, _layout: partial(read_centerface, spec.thresholds.confidence),
    usual_labels=("face",),
)


_SCRFD_ANCHORS = 2
_LANDMARKS = 10  # x and y of five points


class YuNet:
    """Reads, for each level with stride 8, 16 and 32: two scores 0-1, float (1, N, 1), and boxes, float (1, N, 4).

    Confidence = square root of the scores' product; box centre = (cell + xy) * stride, size = exp(wh) * stride.
    Source: OpenCV 4.8 and newer, modules/objdetect/src/face_detect.cpp.
    """

    def __init__(self, size_wh: tuple[int, int], confidence: float) -> None:
        self._confidence = np.float32(confidence)
        self._cells = cells_of(size_wh, STRIDES)

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the outputs of one frame: first scores of all levels, second scores, boxes."""
        first, second, boxes = _joined(outputs, 3)
        confidences = np.sqrt(np.clip(first[:, 0], 0, 1) * np.clip(second[:, 0], 0, 1))
        found = np.flatnonzero(confidences >= self._confidence)
        cells, boxes = self._cells[found], boxes[found]
        boxes[:, :2] += cells[:, :2]
        boxes[:, 2:] = sizes_of(boxes[:, 2:])
        boxes *= cells[:, 2:]
        return Candidates(corner_boxes(boxes), confidences[found], np.zeros(len(found), np.int64))


class Scrfd:
    """Reads, for each level with stride 8, 16 and 32: scores 0-1, float (N, 1), and distances, float (N, 4).

    Each cell has two anchors at its upper left corner, from which the distances to the box's left, top, right and
    bottom are given in strides. Outputs may have a first axis of 1. Source: InsightFace, detection/scrfd.
    """

    def __init__(self, size_wh: tuple[int, int], confidence: float) -> None:
        self._confidence = np.float32(confidence)
        cells = cells_of(size_wh, STRIDES).repeat(_SCRFD_ANCHORS, axis=0)
        self._corners, self._strides = cells[:, :2] * cells[:, 2:], cells[:, 2:]

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the outputs of one frame: scores of all levels, then distances."""
        scores, sides = _joined(outputs, 2)
        found = np.flatnonzero(scores[:, 0] >= self._confidence)
        boxes = sides[found] * self._strides[found]
        boxes[:, 2:] += boxes[:, :2]
        boxes[:, :2] = self._corners[found] - boxes[:, :2]
        return Candidates(boxes, scores[found, 0], np.zeros(len(found), np.int64))


def _joined(outputs: Sequence[Tensor], kinds: int) -> list[Tensor]:
    """Return the levels of each of the first `kinds` kinds of output as one array, float (N, values)."""
    levels = len(STRIDES)
    rows = [output.reshape(-1, output.shape[-1]) for output in outputs[: kinds * levels]]
    return [np.concatenate(rows[first : first + levels]) for first in range(0, len(rows), levels)]


def _layouts(spec: TaskSpec, label_count: int, anchors: int, scores: int) -> Sequence[Layout]:
    """Expect scores, boxes and perhaps landmarks, an output a level each; all with a first axis of 1, or none."""
    counts = [anchors * cell_count(spec.input.size_wh, stride) for stride in STRIDES]
    layouts = []
    for first in ((1,), ()):
        kinds = [
            *[[ModelOutput((*first, n, label_count), class_axis=len(first) + 1) for n in counts]] * scores,
            [ModelOutput((*first, n, 4), None) for n in counts],
            [ModelOutput((*first, n, _LANDMARKS), None) for n in counts],
        ]
        layouts += [tuple(output for kind in read for output in kind) for read in (kinds, kinds[:-1])]
    return layouts


def _check_one_label(name: str, label_count: int) -> None:
    if label_count != 1:
        raise ModelError(f"decoder {name}: finds faces, expected one label, got {label_count}")


def _make_yunet(spec: TaskSpec, label_count: int, _layout: Layout) -> YuNet:
    _check_one_label("yunet", label_count)
    return YuNet(spec.input.size_wh, spec.thresholds.confidence)


def _make_scrfd(spec: TaskSpec, label_count: int, _layout: Layout) -> Scrfd:
    _check_one_label("scrfd", label_count)
    return Scrfd(spec.input.size_wh, spec.thresholds.confidence)


YUNET = Decoder(
    name="yunet",
    task="detection",
    layouts=lambda spec, label_count, _got: _layouts(spec, label_count, anchors=1, scores=2),
    make=_make_yunet,
    usual_input={"color": "BGR"},
    usual_labels=("face",),
)
SCRFD = Decoder(
    name="scrfd",
    task="detection",
    layouts=lambda spec, label_count, _got: _layouts(spec, label_count, _SCRFD_ANCHORS, scores=1),
    make=_make_scrfd,
    usual_input={"pad_anchor": "top_left", "mean": (127.5, 127.5, 127.5), "std": (128.0, 128.0, 128.0)},
    usual_labels=("face",),
)
