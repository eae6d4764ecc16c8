"""Detectors that give more than boxes: keypoints (poses), or a mask (instance segmentation) for each object.

The keypoints or mask coefficients of an object follow its classes. A reader of boxes returns them as
`Candidates.extras`; after suppression the decode stage calls `Reader.details` on those of the kept objects. MoveNet
gives the keypoints of one person, or of up to six persons with their boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from edge_sdk.core.frame import Masks, Prepared, Tensor
from edge_sdk.tasks.boxes import Candidates, Decode, Floats, Reader, boxes_between
from edge_sdk.tasks.detr import END_TO_END
from edge_sdk.tasks.outputs import COLUMNS, ROWS, UNIT, Decoder, Layout, ModelOutput, Shape, check_one_label
from edge_sdk.tasks.spec import DetectionSpec, TaskSpec
from edge_sdk.tasks.yolo import floored_cells, read_yolov8

_USUAL_PROTOTYPES = 32
_POINTS = 17  # of MoveNet, as COCO's persons have them
_SEEN = np.float32(0.1)  # keypoints with scores above this are averaged to the confidence of MoveNet's single person


def with_keypoints(decode: Decode, count: int, values: int) -> Reader:
    """Return the reader of objects with `count` keypoints of `values` numbers each: x, y, and with 3 a confidence."""
    return Reader(decode, partial(_read_keypoints, count, values), count * values)


def _read_keypoints(
    count: int, values: int, _outputs: Sequence[Tensor], extras: Floats, prepared: Prepared
) -> dict[str, Any]:
    """Return `keypoints`, float32 (N, count, 3) in frame pixels, from extras in input pixels; 0 for non-finite ones."""
    points = np.ones((len(extras), count, 3), np.float32)
    points[..., :values] = extras.reshape(-1, count, values)
    prepared.geometry.points_to_frame(points)
    if not np.isfinite(points).all():
        points[~np.isfinite(points).all(axis=2)] = 0
    return {"keypoints": points}


def _read_masks(
    input_wh: tuple[int, int], outputs: Sequence[Tensor], extras: Floats, prepared: Prepared
) -> dict[str, Any]:
    """Return `masks`: each object's M coefficients, and the prototypes, the second output, float (1, M, h, w)."""
    prototypes = outputs[1][0]
    rows, columns = prototypes.shape[1:]
    prototypes = prototypes.copy() if len(extras) else np.broadcast_to(np.float32(0), prototypes.shape)
    x, y = columns / input_wh[0], rows / input_wh[1]
    return {"masks": Masks(extras, prototypes, prepared.geometry.in_cells(x, y))}


def read_movenet(size_wh: tuple[int, int], confidence: float, outputs: Sequence[Tensor]) -> Candidates:
    """Read one person, float (1, 1, 17, 3), or several, float (1, N, 56); y, x as fractions of the input, scores 0-1.

    A row of 56 has 17 times y, x and score, then top, left, bottom, right and the confidence. A single person's box
    encloses all keypoints; its confidence is the mean score of the keypoints above 0.1. Source: TensorFlow's examples,
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
    boxes = boxes_between(boxes[found][:, [1, 0, 3, 2]] * np.array(size_wh * 2, np.float32))
    extras = points[found][..., [1, 0, 2]] * np.array([*size_wh, 1], np.float32)
    no_class = np.zeros(len(found), np.int64)
    return Candidates(boxes, confidences[found], no_class, extras=extras.reshape(len(found), 3 * _POINTS))


def _check_keypoints(detection: DetectionSpec) -> None:
    if detection.keypoints is None:
        raise ValueError(
            "detection.keypoints is missing, expected the numbers of points and of values of each: [17, 3]"
        )


def _v8(count: int, extras: int, spec: TaskSpec) -> ModelOutput:
    return ModelOutput((1, 4 + count + extras, floored_cells(spec.input.size_wh)), others=4 + extras)


def _rows(_count: int, extras: int, _spec: TaskSpec) -> ModelOutput:
    return ModelOutput((1, "N", 6 + extras), None)


_Output = Callable[[int, int, TaskSpec], ModelOutput]


def _pose(output: _Output, spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    if spec.detection.keypoints is None:
        return []
    points, values = spec.detection.keypoints
    return [(output(label_count, points * values, spec),)]


def _masks(output: _Output, spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> Sequence[Layout]:
    counts = [shape[1] for shape in got if len(shape) == 4 and isinstance(shape[1], int)]
    return [
        (output(label_count, count, spec), ModelOutput((1, count, ROWS, COLUMNS), None))
        for count in counts or [_USUAL_PROTOTYPES]
    ]


def _with_details(read: Decode, spec: TaskSpec, layout: Layout) -> Reader:
    if spec.detection.keypoints is not None and len(layout) == 1:
        return with_keypoints(read, *spec.detection.keypoints)
    count = layout[1].shape[1]
    assert isinstance(count, int)
    return Reader(read, partial(_read_masks, spec.input.size_wh), count)


def _make_v8(spec: TaskSpec, label_count: int, layout: Layout) -> Reader:
    return _with_details(partial(read_yolov8, spec.thresholds.confidence, class_count=label_count), spec, layout)


def _make_rows(spec: TaskSpec, label_count: int, layout: Layout) -> Reader:
    return _with_details(END_TO_END.make(spec, label_count, layout), spec, layout)


def _make_movenet(spec: TaskSpec, label_count: int, _layout: Layout) -> Reader:
    check_one_label("movenet", "persons", label_count)
    return with_keypoints(partial(read_movenet, spec.input.size_wh, spec.thresholds.confidence), _POINTS, 3)


YOLOV8_POSE = Decoder(
    name="yolov8_pose",
    layouts=partial(_pose, _v8),
    make=_make_v8,
    check=_check_keypoints,
    needs="detection.keypoints",
    said="pose",
    usual_input=UNIT,
)
YOLOV8_SEG = Decoder(name="yolov8_seg", layouts=partial(_masks, _v8), make=_make_v8, said="segment", usual_input=UNIT)
END_TO_END_POSE = Decoder(
    name="end_to_end_pose",
    layouts=partial(_pose, _rows),
    make=_make_rows,
    check=_check_keypoints,
    needs="detection.keypoints",
    suppresses=False,
    said="pose",
    usual_input=UNIT,
)
END_TO_END_SEG = Decoder(
    name="end_to_end_seg",
    layouts=partial(_masks, _rows),
    make=_make_rows,
    suppresses=False,
    said="segment",
    usual_input=UNIT,
)
MOVENET = Decoder(
    name="movenet",
    layouts=lambda _spec, _count, _got: [(ModelOutput((1, *rest), None),) for rest in ((1, _POINTS, 3), (6, 56))],
    make=_make_movenet,
    suppresses=False,
    usual_labels=("person",),
    said="pose",
    is_shown=lambda _seen: True,
)
