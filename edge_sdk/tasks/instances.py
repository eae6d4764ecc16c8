"""Detectors that say more of an object than its box: keypoints (poses), or a mask (instance segmentation).

The row of an object holds the numbers of both kinds after its classes. A reader of boxes leaves them in
`Candidates.extras`; the detector's stage has them read by the reader's `details` for the objects that remain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from edge_sdk.core.frame import Geometry, Masks, Prepared, Tensor
from edge_sdk.tasks.boxes import Candidates, Floats
from edge_sdk.tasks.detr import END_TO_END
from edge_sdk.tasks.outputs import COLUMNS, ROWS, Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.spec import DetectionSpec, TaskSpec
from edge_sdk.tasks.yolo import floored_cells, read_yolov8

_USUAL_PROTOTYPES = 32


class ReadKeypoints:
    """Reads points that lie one after the other in an object's row: x, y in input pixels, and perhaps a confidence.

    Args:
        count: points of an object.
        values: numbers of a point, 2 or 3.
    """

    def __init__(self, count: int, values: int) -> None:
        self._shape = (count, values)
        self.width = count * values

    def __call__(self, _outputs: Sequence[Tensor], extras: Floats, prepared: Prepared) -> dict[str, Any]:
        """Return `keypoints` of float32 (N, `width`): all 0 where a value is no number."""
        points = np.ones((len(extras), self._shape[0], 3), np.float32)
        points[..., : self._shape[1]] = extras.reshape(-1, *self._shape)
        prepared.geometry.points_to_frame(points)
        points[~np.isfinite(points).all(axis=2)] = 0
        return {"keypoints": points}


class ReadMasks:
    """Reads masks that are sums of prototypes, float (1, M, h, w), weighted by an object's M coefficients.

    Args:
        count: M.
        input_wh: the input's width and height in pixels, which the prototypes cover.
    """

    def __init__(self, count: int, input_wh: tuple[int, int]) -> None:
        self.width, self._input_wh = count, input_wh

    def __call__(self, outputs: Sequence[Tensor], extras: Floats, prepared: Prepared) -> dict[str, Any]:
        """Return `masks` of float32 (N, M) and the prototypes, which are the second output."""
        prototypes = outputs[1][0]
        rows, columns = prototypes.shape[1:]
        values = (extras @ prototypes.reshape(len(prototypes), -1)).reshape(-1, rows, columns)
        x, y = columns / self._input_wh[0], rows / self._input_wh[1]
        own = prepared.geometry
        return {"masks": Masks(values, Geometry(own.scale_x * x, own.scale_y * y, own.offset_x * x, own.offset_y * y))}


class ReadInstances:
    """Reads boxes as another reader does, and what else their rows hold.

    Args:
        read: gives candidates with `extras`.
        details: what `tasks.detection` calls with the extras of the objects that remain.
    """

    def __init__(self, read: Callable[[Sequence[Tensor]], Candidates], details: ReadKeypoints | ReadMasks) -> None:
        self._read, self.details = read, details

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the outputs of one frame."""
        return self._read(outputs)


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


def _details(spec: TaskSpec, layout: Layout) -> ReadKeypoints | ReadMasks:
    if spec.detection.keypoints is not None and len(layout) == 1:
        return ReadKeypoints(*spec.detection.keypoints)
    count = layout[1].shape[1]
    assert isinstance(count, int)
    return ReadMasks(count, spec.input.size_wh)


def _make_v8(spec: TaskSpec, label_count: int, layout: Layout) -> ReadInstances:
    read = partial(read_yolov8, spec.thresholds.confidence, class_count=label_count)
    return ReadInstances(read, _details(spec, layout))


def _make_rows(spec: TaskSpec, label_count: int, layout: Layout) -> ReadInstances:
    return ReadInstances(END_TO_END.make(spec, label_count, layout), _details(spec, layout))


YOLOV8_POSE = Decoder(
    name="yolov8_pose",
    task="detection",
    layouts=partial(_pose, _v8),
    make=_make_v8,
    check=_check_keypoints,
    needs="detection.keypoints",
    said="pose",
    usual_input=END_TO_END.usual_input,
)
YOLOV8_SEG = Decoder(
    name="yolov8_seg",
    task="detection",
    layouts=partial(_masks, _v8),
    make=_make_v8,
    said="segment",
    usual_input=END_TO_END.usual_input,
)
END_TO_END_POSE = Decoder(
    name="end_to_end_pose",
    task="detection",
    layouts=partial(_pose, _rows),
    make=_make_rows,
    check=_check_keypoints,
    needs="detection.keypoints",
    suppresses=False,
    said="pose",
    usual_input=END_TO_END.usual_input,
)
END_TO_END_SEG = Decoder(
    name="end_to_end_seg",
    task="detection",
    layouts=partial(_masks, _rows),
    make=_make_rows,
    suppresses=False,
    said="segment",
    usual_input=END_TO_END.usual_input,
)
