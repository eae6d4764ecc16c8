"""Detectors that end in their own suppression, as TensorFlow and torchvision write them: boxes, classes and scores.

Classes and scores have one shape, and exporters differ in the order: classes are whole numbers, and scores are not.
TensorFlow counts classes from 1 in SavedModels and from 0 in .tflite files, torchvision from 1; `background_class` says
which.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import Candidates, Floats
from edge_sdk.tasks.outputs import Decoder, Layout, ModelOutput, SeenOutput, Shape
from edge_sdk.tasks.spec import DetectionSpec, TaskSpec


class ReadSuppressed:
    """Reads boxes float (N, 4), and N classes and N scores 0-1 in any order, each with a first axis of 1 or none.

    Rows after the last object have the score 0. A class that no label has is no detection.

    Args:
        columns: where in a box left, top, right and bottom are.
        size_wh: what a box's numbers are parts of, in pixels.
        first: the number of the first label's class.
    """

    def __init__(
        self, columns: Sequence[int], size_wh: tuple[int, int], first: int, label_count: int, confidence: float
    ) -> None:
        self._columns, self._size, self._first = list(columns), np.array(size_wh * 2, np.float32), first
        self._count, self._confidence = label_count, np.float32(confidence)

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the outputs of one frame."""
        one, other = outputs[1].reshape(-1), outputs[2].reshape(-1)
        scores, classes = (other, one) if _are_classes(one) else (one, other)
        return self.read(outputs[0].reshape(-1, 4), scores, classes)

    def read(self, boxes: Floats, scores: Floats, classes: Tensor) -> Candidates:
        """Read float (N, 4) and twice (N,)."""
        class_ids = np.rint(np.nan_to_num(classes, nan=-1)).astype(np.int64) - self._first
        found = np.flatnonzero((scores >= self._confidence) & (class_ids >= 0) & (class_ids < self._count))
        chosen = boxes[found][:, self._columns] * self._size
        chosen[:, 2:] -= chosen[:, :2]
        return Candidates(chosen, scores[found], class_ids[found])


def _are_classes(values: Tensor) -> bool:
    return values.dtype.kind in "iu" or bool((values == np.rint(values)).all())


def _tensorflow_layouts(_spec: TaskSpec, _label_count: int, got: Sequence[Shape]) -> Sequence[Layout]:
    """Expect two outputs of N beside N boxes, and perhaps their number; with more it is not known which they are."""
    [count] = [shape[1] for shape in got if len(shape) == 3 and shape[2] == 4][:1] or ["N"]
    row = ModelOutput((1, count), None)
    if sum(row.fits(shape) for shape in got) > 2:
        return []
    read = ModelOutput((1, count, 4), None), row, row
    return [(*read, ModelOutput((1,), None)), read]


def _torchvision_layouts(_spec: TaskSpec, _label_count: int, got: Sequence[Shape]) -> Sequence[Layout]:
    [count] = [shape[0] for shape in got if len(shape) == 2 and shape[1] == 4][:1] or ["N"]
    row = ModelOutput((count,), None)
    return [(ModelOutput((count, 4), None), row, row)]


def _make_tensorflow(spec: TaskSpec, label_count: int, _layout: Layout) -> ReadSuppressed:
    first = int(spec.detection.background_class)
    return ReadSuppressed((1, 0, 3, 2), spec.input.size_wh, first, label_count, spec.thresholds.confidence)


def _make_torchvision(spec: TaskSpec, label_count: int, _layout: Layout) -> ReadSuppressed:
    first = int(spec.detection.background_class)
    return ReadSuppressed((0, 1, 2, 3), (1, 1), first, label_count, spec.thresholds.confidence)


def _count_from(seen: Sequence[SeenOutput]) -> DetectionSpec:
    """SavedModels of TensorFlow's Detection API name their outputs so; .tflite files do not, and count from 0."""
    return DetectionSpec(background_class=any(output.name.startswith("detection_") for output in seen))


TENSORFLOW = Decoder(
    name="tensorflow_nms",
    task="detection",
    layouts=_tensorflow_layouts,
    make=_make_tensorflow,
    suppresses=False,
    usual_input={"resize": "stretch", "mean": (127.5, 127.5, 127.5), "std": (127.5, 127.5, 127.5)},
    usual_count=90,
    # TensorFlow calls none of them so; DETR's exporters do, whose boxes are in pixels.
    is_shown=lambda seen: all(output.name != "labels" for output in seen),
    section=_count_from,
)
TORCHVISION = Decoder(
    name="torchvision_nms",
    task="detection",
    layouts=_torchvision_layouts,
    make=_make_torchvision,
    suppresses=False,
    usual_input={"resize": "stretch", "std": (255.0, 255.0, 255.0)},
    usual_count=90,
    is_shown=lambda _seen: True,
)
