"""MoveNet: the keypoints of one person, or of up to six persons with their boxes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import Candidates, Floats
from edge_sdk.tasks.instances import ReadInstances, ReadKeypoints
from edge_sdk.tasks.outputs import Decoder, Layout, ModelOutput, check_one_label
from edge_sdk.tasks.spec import TaskSpec

_POINTS = 17
_SEEN = np.float32(0.1)  # scores of points above this make the confidence of a person


def read_movenet(size_wh: tuple[int, int], confidence: float, outputs: Sequence[Tensor]) -> Candidates:
    """Read one person, float (1, 1, 17, 3), or several, float (1, N, 56); y, x as parts of the input, and scores 0-1.

    A row of 56 has 17 times y, x and score, then top, left, bottom, right and the confidence. A single person's box
    encloses all its points, and its confidence is the mean score of those that are seen. Source: TensorFlow's examples,
    lite/examples/pose_estimation, ml/movenet.py and ml/movenet_multipose.py.
    """
    rows: Floats = outputs[0].reshape(outputs[0].shape[1], -1)
    points = rows[:, : 3 * _POINTS].reshape(-1, _POINTS, 3)
    if rows.shape[1] > 3 * _POINTS:
        boxes, confidences = rows[:, -5:-1], rows[:, -1]
    else:
        places, seen = points[..., :2], points[..., 2] > _SEEN
        boxes = np.hstack([places.min(axis=1), places.max(axis=1)])
        confidences = (points[..., 2] * seen).sum(axis=1) / np.maximum(seen.sum(axis=1), 1).astype(np.float32)
    found = np.flatnonzero(confidences >= np.float32(confidence))
    boxes = boxes[found][:, [1, 0, 3, 2]] * np.array(size_wh * 2, np.float32)
    boxes[:, 2:] -= boxes[:, :2]
    extras = points[found][..., [1, 0, 2]] * np.array([*size_wh, 1], np.float32)
    no_class = np.zeros(len(found), np.int64)
    return Candidates(boxes, confidences[found], no_class, extras=extras.reshape(len(found), 3 * _POINTS))


def _make(spec: TaskSpec, label_count: int, _layout: Layout) -> ReadInstances:
    check_one_label("movenet", "persons", label_count)
    read = partial(read_movenet, spec.input.size_wh, spec.thresholds.confidence)
    return ReadInstances(read, ReadKeypoints(_POINTS, 3))


MOVENET = Decoder(
    name="movenet",
    task="detection",
    layouts=lambda _spec, _count, _got: [(ModelOutput((1, *rest), None),) for rest in ((1, _POINTS, 3), (6, 56))],
    make=_make,
    suppresses=False,
    usual_labels=("person",),
    said="pose",
    is_shown=lambda _seen: True,
)
