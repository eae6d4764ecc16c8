"""Detectors of faces with five landmarks: YuNet and SCRFD. `tasks.centernet` has CenterFace, `tasks.ssd` UltraFace."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import STRIDES, Candidates, Floats, Reader, cell_count, cells_of, corner_boxes, sizes_of
from edge_sdk.tasks.instances import with_keypoints
from edge_sdk.tasks.outputs import Decoder, Layout, ModelOutput, check_one_label
from edge_sdk.tasks.spec import TaskSpec, Thresholds

_SCRFD_ANCHORS = 2
_LANDMARKS = 5


class YuNet:
    """Reads, for each level with stride 8, 16 and 32: two scores 0-1, float (1, N, 1), and boxes, float (1, N, 4).

    Confidence = square root of the scores' product; box centre = (cell + xy) * stride, size = exp(wh) * stride.
    Optional landmarks, float (1, N, 10), become `extras`: (cell + xy) * stride.
    Source: OpenCV 4.8 and newer, modules/objdetect/src/face_detect.cpp.
    """

    def __init__(self, size_wh: tuple[int, int], confidence: float) -> None:
        self._confidence = np.float32(confidence)
        self._cells = cells_of(size_wh, STRIDES)

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the outputs of one frame: first scores of all levels, second scores, boxes, landmarks."""
        first, second, boxes, *landmarks = _joined(outputs)
        confidences = np.sqrt(np.clip(first[:, 0], 0, 1) * np.clip(second[:, 0], 0, 1))
        found = np.flatnonzero(confidences >= self._confidence)
        cells, boxes = self._cells[found], boxes[found]
        boxes[:, :2] += cells[:, :2]
        boxes[:, 2:] = sizes_of(boxes[:, 2:])
        boxes *= cells[:, 2:]
        extras = _points(landmarks[0][found], cells[:, :2] * cells[:, 2:], cells[:, 2:]) if landmarks else None
        return Candidates(corner_boxes(boxes), confidences[found], np.zeros(len(found), np.int64), extras=extras)


class Scrfd:
    """Reads, for each level with stride 8, 16 and 32: scores 0-1, float (N, 1), and distances, float (N, 4).

    Each cell has two anchors at its upper left corner. Distances from there to the box's left, top, right and bottom,
    and to optional landmarks, float (N, 10), are in strides. All outputs may have a leading axis of size 1.
    Source: InsightFace, detection/scrfd.
    """

    def __init__(self, size_wh: tuple[int, int], confidence: float) -> None:
        self._confidence = np.float32(confidence)
        cells = cells_of(size_wh, STRIDES).repeat(_SCRFD_ANCHORS, axis=0)
        self._corners, self._strides = cells[:, :2] * cells[:, 2:], cells[:, 2:]

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the outputs of one frame: scores of all levels, then distances, then landmarks."""
        scores, sides, *landmarks = _joined(outputs)
        found = np.flatnonzero(scores[:, 0] >= self._confidence)
        boxes = sides[found] * self._strides[found]
        boxes[:, 2:] += boxes[:, :2]
        boxes[:, :2] = self._corners[found] - boxes[:, :2]
        extras = _points(landmarks[0][found], self._corners[found], self._strides[found]) if landmarks else None
        return Candidates(boxes, scores[found, 0], np.zeros(len(found), np.int64), extras=extras)


def _points(values: Floats, origins: Floats, strides: Floats) -> Floats:
    """Convert landmarks (N, 10), in strides from their origins, to input pixels; origins (N, 2), strides (N, 1)."""
    points: Floats = values * strides + np.tile(origins, _LANDMARKS)
    return points


def _joined(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the levels of each kind of output as one array, float (N, values)."""
    levels = len(STRIDES)
    rows = [output.reshape(-1, output.shape[-1]) for output in outputs]
    return [np.concatenate(rows[first : first + levels]) for first in range(0, len(rows), levels)]


def _layouts(spec: TaskSpec, label_count: int, anchors: int, scores: int) -> Sequence[Layout]:
    """Expect one output per level of scores, boxes and optional landmarks, all with or all without a batch axis."""
    counts = [anchors * cell_count(spec.input.size_wh, stride) for stride in STRIDES]
    layouts = []
    for first in ((1,), ()):
        kinds = [
            *[[ModelOutput((*first, n, label_count), class_axis=len(first) + 1) for n in counts]] * scores,
            [ModelOutput((*first, n, 4), None) for n in counts],
            [ModelOutput((*first, n, 2 * _LANDMARKS), None) for n in counts],
        ]
        layouts += [tuple(output for kind in read for output in kind) for read in (kinds, kinds[:-1])]
    return layouts


def _make(
    name: str, kind: type[YuNet] | type[Scrfd], spec: TaskSpec, label_count: int, layout: Layout
) -> YuNet | Scrfd | Reader:
    check_one_label(name, "faces", label_count)
    read = kind(spec.input.size_wh, spec.thresholds.confidence)
    has_landmarks = layout[-1].shape[-1] == 2 * _LANDMARKS
    return with_keypoints(read, _LANDMARKS, 2) if has_landmarks else read


YUNET = Decoder(
    name="yunet",
    layouts=lambda spec, label_count, _got: _layouts(spec, label_count, anchors=1, scores=2),
    make=partial(_make, "yunet", YuNet),
    usual_input={"color": "BGR"},
    usual_thresholds=Thresholds(0.7, 0.3),
    usual_labels=("face",),
)
SCRFD = Decoder(
    name="scrfd",
    layouts=lambda spec, label_count, _got: _layouts(spec, label_count, _SCRFD_ANCHORS, scores=1),
    make=partial(_make, "scrfd", Scrfd),
    usual_input={"pad_anchor": "top_left", "mean": (127.5, 127.5, 127.5), "std": (128.0, 128.0, 128.0)},
    usual_thresholds=Thresholds(0.5, 0.4),
    usual_labels=("face",),
)
