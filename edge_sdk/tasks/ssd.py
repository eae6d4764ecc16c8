"""The SSD family (RetinaFace, EfficientDet, Ultra-Light face detectors): one box and its scores per prior.

Exporters write boxes in two ways: as corners, decoded in the graph, or as offsets from priors that the graph lacks.
`efficientdet` and `ultraface` are `ssd` with the priors and settings of these families. `tensorflow_nms` and
`torchvision_nms` read models that suppress overlaps in their graph and return boxes, classes and scores. Class ids
start at 1 in TensorFlow's SavedModels and in torchvision, at 0 in .tflite files: `background_class` is set for 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import (
    NO_CANDIDATES,
    Candidates,
    Decode,
    Floats,
    best_classes,
    boxes_between,
    cell_count,
    cells_of,
    corner_boxes,
    lowest_logit,
    rows_of,
    sigmoid,
    sizes_of,
    softmax,
)
from edge_sdk.tasks.outputs import IMAGENET, SYMMETRIC, UNIT, Decoder, Layout, ModelOutput, SeenOutput, Shape
from edge_sdk.tasks.spec import DetectionSpec, TaskSpec, Thresholds

_XY, _YX = [0, 1, 2, 3], [1, 0, 3, 2]


class Ssd:
    """Reads boxes float (1, N, 4) and scores float (1, N, classes), of which the first may be the background's.

    With priors, box centre = prior's centre + xy * variances[0] * prior's size, size = prior's size * exp(wh *
    variances[1]). Logits become probabilities by a softmax over all classes with a background class, else by a sigmoid.
    """

    def __init__(self, spec: DetectionSpec, size_wh: tuple[int, int], confidence: float) -> None:
        self._columns = _YX if spec.box_order == "yxyx" else _XY
        self._to_pixels = np.array(size_wh * 2 if spec.box_unit == "fraction" else (1, 1, 1, 1), np.float32)
        self._priors = _priors_of(spec, size_wh) if spec.strides else None
        self._variances = np.array(spec.variances, np.float32).repeat(2)
        self._background = int(spec.background_class)
        self._are_logits = spec.scores == "logits"
        self._lowest = lowest_logit(confidence) if self._are_logits else np.float32(confidence)

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read boxes and scores of one frame."""
        boxes, scores = outputs[0][0], outputs[1][0]
        # A class reaches the threshold only if its logit is at least this far above the background's logit.
        lowest = scores[:, :1] + self._lowest if self._are_logits and self._background else self._lowest
        may_count = scores >= lowest
        may_count[:, : self._background] = False
        found = rows_of(may_count)
        if not len(found):
            return NO_CANDIDATES
        classes = self._probabilities(scores[found])[:, self._background :]
        return Candidates(self._boxes(boxes[found], found), *best_classes(classes))

    def _probabilities(self, scores: Floats) -> Floats:
        if not self._are_logits:
            return scores
        return softmax(scores) if self._background else sigmoid(scores)

    def _boxes(self, values: Floats, found: NDArray[np.int64]) -> Floats:
        values = values[:, self._columns]
        if self._priors is None:
            return boxes_between(values * self._to_pixels)
        values *= self._variances
        priors = self._priors[found]
        values[:, :2] *= priors[:, 2:]
        values[:, :2] += priors[:, :2]
        values[:, 2:] = sizes_of(values[:, 2:]) * priors[:, 2:]
        return corner_boxes(values)


def _priors_of(spec: DetectionSpec, size_wh: tuple[int, int]) -> Floats:
    """Return float32 (N, 4): centre x, y, width, height in input pixels; by level, then cell, then anchor."""
    levels = []
    for anchors, stride in zip(spec.anchors, spec.strides, strict=True):
        cells = cells_of(size_wh, [stride])
        centres = (cells[:, None, :2] + 0.5) * stride
        sizes = np.array(anchors)[None]
        shape = (len(cells), len(anchors), 2)
        both = np.concatenate([np.broadcast_to(centres, shape), np.broadcast_to(sizes, shape)], axis=2)
        levels.append(both.reshape(-1, 4))
    return np.concatenate(levels).astype(np.float32)


def _layouts(
    detection: DetectionSpec, size_wh: tuple[int, int], label_count: int, got: Sequence[Shape]
) -> Sequence[Layout]:
    """Expect one box per prior; without priors, any number of boxes."""
    counts: list[int | str]
    if detection.strides:
        levels = zip(detection.anchors, detection.strides, strict=True)
        counts = [sum(len(anchors) * cell_count(size_wh, stride) for anchors, stride in levels)]
    else:
        found = [shape[1] for shape in got if len(shape) == 3 and shape[2] == 4 and isinstance(shape[1], int)]
        counts = list(dict.fromkeys(found)) or ["N"]
    background = int(detection.background_class)
    return [
        (
            ModelOutput((1, count, 4), None),
            ModelOutput((1, count, background + label_count), class_axis=2, others=background),
        )
        for count in counts
    ]


def _check(detection: DetectionSpec) -> None:
    if detection.anchors and not detection.strides:
        raise ValueError("detection.strides is missing, expected one number a list of detection.anchors for ssd")


SSD = Decoder(
    name="ssd",
    layouts=lambda spec, label_count, got: _layouts(spec.detection, spec.input.size_wh, label_count, got),
    make=lambda spec, _label_count, _layout: Ssd(spec.detection, spec.input.size_wh, spec.thresholds.confidence),
    check=_check,
)


_STRIDES = (8, 16, 32, 64, 128)
_SCALES, _RATIOS = (4.0, 4 * 2 ** (1 / 3), 4 * 2 ** (2 / 3)), ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4))
_EFFICIENTDET = DetectionSpec(
    anchors=tuple(tuple((s * scale * w, s * scale * h) for scale in _SCALES for w, h in _RATIOS) for s in _STRIDES),
    strides=_STRIDES,
    variances=(1.0, 1.0),
    box_order="yxyx",
    background_class=False,
)
"""Priors of EfficientDet. Source: google/automl, anchors.py."""


class ReadSuppressed:
    """Reads boxes float (N, 4), and N classes and N scores 0-1 in any order, each with a first axis of 1 or none.

    Classes and scores have the same shape, and exporters differ in their order: only classes are whole numbers.
    Rows after the last object have the score 0. Rows whose class has no label are dropped.

    Args:
        columns: indices of left, top, right and bottom in a box.
        size_wh: width and height in pixels of which a box's values are fractions.
        first: the class id of the first label.
    """

    def __init__(
        self, columns: Sequence[int], size_wh: tuple[int, int], first: int, label_count: int, confidence: float
    ) -> None:
        self._columns, self._size, self._first = list(columns), np.array(size_wh * 2, np.float32), first
        self._count, self._confidence = label_count, np.float32(confidence)
        self._has_scores_first: bool | None = None  # None until the first frame with objects

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the outputs of one frame."""
        one, other = outputs[1].reshape(-1), outputs[2].reshape(-1)
        if _are_whole(one) != _are_whole(other):
            self._has_scores_first = _are_whole(other)
        # In a frame without objects the scores are whole numbers, too, and none is above 1.
        is_swapped = (other > 1).any() if self._has_scores_first is None else self._has_scores_first
        scores, classes = (one, other) if is_swapped else (other, one)
        return self.read(outputs[0].reshape(-1, 4), scores, classes)

    def read(self, boxes: Floats, scores: Floats, classes: Tensor) -> Candidates:
        """Return the candidates of boxes float (N, 4), scores 0-1 float (N,) and classes (N,)."""
        class_ids = np.rint(np.nan_to_num(classes, nan=-1)).astype(np.int64) - self._first
        found = np.flatnonzero((scores >= self._confidence) & (class_ids >= 0) & (class_ids < self._count))
        chosen = boxes_between(boxes[found][:, self._columns] * self._size)
        return Candidates(chosen, scores[found], class_ids[found])


def _are_whole(values: Tensor) -> bool:
    return values.dtype.kind in "iu" or bool((values == np.rint(values)).all())


class _Rows(ReadSuppressed):
    """Reads rows, float (1, N, 7): image index, top, left, bottom, right in input pixels, score 0-1, class."""

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        rows: Floats = outputs[0][0]
        return self.read(rows[:, 1:5], rows[:, 5], rows[:, 6])


def _make_efficientdet(spec: TaskSpec, label_count: int, layout: Layout) -> Decode:
    if len(layout) == 1:
        return _Rows(_YX, (1, 1), 1, label_count, spec.thresholds.confidence)
    detection = msgspec.structs.replace(_EFFICIENTDET, scores=spec.detection.scores)
    return Ssd(detection, spec.input.size_wh, spec.thresholds.confidence)


def _scores_of(seen: Sequence[SeenOutput]) -> DetectionSpec:
    is_activated = len(seen) == 1 or any(output.operator == "Sigmoid" for output in seen)
    return DetectionSpec(scores="probabilities" if is_activated else "logits")


def _ultraface_layouts(spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    levels = zip(_ULTRAFACE.anchors, _ULTRAFACE.strides, strict=True)
    count = sum(len(anchors) * cell_count(spec.input.size_wh, stride) for anchors, stride in levels)
    return [(ModelOutput((1, count, 4), None), ModelOutput((1, count, 1 + label_count), class_axis=2, others=1))]


_ULTRAFACE = DetectionSpec(
    anchors=(
        ((10, 10), (16, 16), (24, 24)),
        ((32, 32), (48, 48)),
        ((64, 64), (96, 96)),
        ((128, 128), (192, 192), (256, 256)),
    ),
    strides=(8, 16, 32, 64),
)
"""Priors of the files without postprocessing. Source: Linzaer/Ultra-Light-Fast-Generic-Face-Detector-1MB."""


def _ultraface_priors(seen: Sequence[SeenOutput]) -> DetectionSpec:
    """Return UltraFace's priors if the boxes come straight from a convolution, and so are not decoded yet."""
    is_raw = any(output.operator == "Conv" for output in seen if output.shape and output.shape[-1] == 4)
    return _ULTRAFACE if is_raw else DetectionSpec()


def _tensorflow_layouts(_spec: TaskSpec, _label_count: int, got: Sequence[Shape]) -> Sequence[Layout]:
    """Expect N boxes, two outputs of N, and an optional count; reject more outputs of N, which would be ambiguous."""
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


def _suppressed(columns: Sequence[int], size_wh: tuple[int, int], spec: TaskSpec, label_count: int) -> ReadSuppressed:
    first = int(spec.detection.background_class)
    return ReadSuppressed(columns, size_wh, first, label_count, spec.thresholds.confidence)


def _count_from(seen: Sequence[SeenOutput]) -> DetectionSpec:
    """Detect SavedModels, whose class ids start at 1, by their outputs' names; in .tflite files ids start at 0."""
    return DetectionSpec(background_class=any(output.name.startswith("detection_") for output in seen))


EFFICIENTDET = Decoder(
    name="efficientdet",
    layouts=lambda spec, label_count, got: [
        *_layouts(_EFFICIENTDET, spec.input.size_wh, label_count, got),
        (ModelOutput((1, "N", 7), None),),
    ],
    make=_make_efficientdet,
    usual_input={"pad_anchor": "top_left", **IMAGENET},
    usual_count=90,
    is_shown=lambda seen: len(seen) == 2 or seen[0].name.startswith("detections"),
    section=_scores_of,
)
ULTRAFACE = Decoder(
    name="ultraface",
    layouts=_ultraface_layouts,
    make=lambda spec, _count, _layout: Ssd(spec.detection, spec.input.size_wh, spec.thresholds.confidence),
    usual_input={"resize": "stretch", "mean": (127.0, 127.0, 127.0), "std": (128.0, 128.0, 128.0)},
    usual_thresholds=Thresholds(0.7, 0.3),
    usual_labels=("face",),
    is_shown=lambda _seen: True,
    section=_ultraface_priors,
)
TENSORFLOW = Decoder(
    name="tensorflow_nms",
    layouts=_tensorflow_layouts,
    make=lambda spec, count, _layout: _suppressed(_YX, spec.input.size_wh, spec, count),
    suppresses=False,
    usual_input={"resize": "stretch", **SYMMETRIC},
    usual_count=90,
    # An output "labels" comes from an exporter of DETR, whose boxes are in pixels; TensorFlow uses other names.
    is_shown=lambda seen: all(output.name != "labels" for output in seen),
    section=_count_from,
)
TORCHVISION = Decoder(
    name="torchvision_nms",
    layouts=_torchvision_layouts,
    make=lambda spec, count, _layout: _suppressed(_XY, (1, 1), spec, count),
    suppresses=False,
    usual_input={"resize": "stretch", **UNIT},
    usual_count=90,
    is_shown=lambda _seen: True,
)
