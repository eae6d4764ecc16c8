"""Schema of the sections of model.toml and manifest that describe how to read a model's outputs.

`ModelSpec` and `Manifest` hold these sections and are `TaskSpec`s. `TRAITS` lists the properties of each task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Meta

Task = Literal["classification", "detection", "segmentation", "embedding", "text", "anomaly"]

AgreementMetric = Literal[
    "top1_agreement", "detection_f1", "mean_iou", "vector_cosine", "equal_texts", "equal_decisions"
]
"""Names in the manifest of the metrics of agreement between two models of a task."""

Truths = Literal["classes", "boxes", "masks", "texts"]
"""Kinds of labels of images."""


class TaskTraits(NamedTuple):
    """Properties of a task that do not depend on the decoder.

    Attributes:
        truths: the kind of labels with which the task is evaluated.
        thresholds: the keys of the section [thresholds] that apply to the task.
        side_px: the usual width and height of a model's input, in pixels.
        is_of_whole_picture: a result is about the whole picture, and has one score per class.
        has_objects: a result is a list of boxes, which are counted; there is no background class among its labels.
        has_class_map: a result is a map of one class per cell.
        has_unknown: a result may be `unknown`, whose class id is -1.
    """

    truths: Truths
    thresholds: tuple[str, ...] = ()
    side_px: int = 224
    is_of_whole_picture: bool = False
    has_objects: bool = False
    has_class_map: bool = False
    has_unknown: bool = False


UNKNOWN = "unknown"
"""Label of pictures whose vector is near none of the gallery; its class id is -1."""

TRAITS: dict[Task, TaskTraits] = {
    "classification": TaskTraits("classes", is_of_whole_picture=True),
    "detection": TaskTraits("boxes", ("confidence", "iou"), 640, has_objects=True),
    "segmentation": TaskTraits("masks", side_px=512, has_class_map=True),
    "embedding": TaskTraits("classes", ("confidence",), 112, has_unknown=True),
    "text": TaskTraits("texts", ("confidence",), 320),
    "anomaly": TaskTraits("classes", ("confidence",), 256),
}

_Unit = Annotated[float, Meta(ge=0, le=1)]
_Stride = Annotated[int, Meta(ge=1, le=8192)]
_Anchors = Annotated[tuple[tuple[tuple[float, float], ...], ...], Meta(examples=[[[[81, 82], [135, 169]]]])]


def check_finite(key: str, values: Iterable[float], *, positive: bool = False) -> None:
    """Raise ValueError if a value is NaN or infinite, which TOML allows, or not positive where `positive` is set."""
    for value in values:
        if not math.isfinite(value) or (positive and value <= 0):
            raise ValueError(f"{key} holds {value}, expected {'positive' if positive else 'finite'} numbers")


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [thresholds]: least confidence and largest overlap of results.

    Attributes:
        confidence: least confidence, 0-1, of a detection, of a class that does not exclude others, of an embedding's
            match or of a text; least score of an anomaly.
        iou: largest IoU of two detections, 0-1; of two that overlap more, the less confident is dropped.
    """

    confidence: _Unit = 0.25
    iou: _Unit = 0.45


class ClassificationSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [classification]: how a classifier's outputs are read.

    Attributes:
        background_class: output 0 is "background"; class_id is then the output's index - 1 in all messages.
        top_k: number of classes in a result.
    """

    background_class: bool = False
    top_k: Annotated[int, Meta(ge=1, le=1000)] = 5


class DetectionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [detection]: how a detector's raw outputs are read.

    Attributes:
        anchors: for `yolov4`: one list per output, of (width, height) in input pixels. For `ssd`: one list per level,
            the sizes of its priors; empty if the model's graph decodes the boxes.
        scale_xy: for `yolov4`: Darknet's `scale_x_y`, one value per output.
        strides: for `ssd`: one value per list of anchors, in input pixels.
        variances: for `ssd` with anchors: factors of the centre offsets and of the logarithms of sizes.
        box_order: for `ssd`: whether x or y comes first.
        box_unit: for `ssd` without anchors: fractions of the input's width and height, or pixels.
        background_class: for `ssd`: the first score is the background's, which has no label. For `tensorflow_nms` and
            `torchvision_nms`: the first label is class 1, else class 0.
        scores: for `ssd`, `efficientdet` and `centernet`: whether scores are probabilities 0-1 or logits.
        reg_max: for `nanodet`: the largest distance of a box's side, in strides.
        keypoints: for pose decoders: number of keypoints of an object, and of values of a keypoint, 2 or 3.
    """

    anchors: _Anchors = ()
    scale_xy: tuple[float, ...] = ()
    strides: tuple[_Stride, ...] = ()
    variances: tuple[float, float] = (0.1, 0.2)
    box_order: Literal["xyxy", "yxyx"] = "xyxy"
    box_unit: Literal["fraction", "pixel"] = "fraction"
    background_class: bool = True
    scores: Literal["probabilities", "logits"] = "probabilities"
    reg_max: Annotated[int, Meta(ge=1, le=64)] = 7
    keypoints: tuple[Annotated[int, Meta(ge=1, le=1000)], Literal[2, 3]] | None = None

    def __post_init__(self) -> None:
        check_finite("anchors", [side for head in self.anchors for anchor in head for side in anchor], positive=True)
        check_finite("scale_xy", self.scale_xy, positive=True)
        check_finite("variances", self.variances, positive=True)
        if len(self.strides) not in (0, len(self.anchors)):
            raise ValueError("strides: expected as many numbers as anchors has lists")


class EmbeddingSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [embedding]; `vector`: whether results hold the vector besides the name."""

    vector: bool = False


class AnomalySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [anomaly]; `score_range`: the model's scores that are mapped to 0 and to 1."""

    score_range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_finite("score_range", self.score_range)
        if self.score_range[0] >= self.score_range[1]:
            raise ValueError(f"score_range is {list(self.score_range)}, expected the lower score first")


class InputShape(Protocol):
    """The properties of a model's input that decoders use."""

    @property
    def size_wh(self) -> tuple[int, int]:
        """Width and height in pixels."""

    @property
    def layout(self) -> Literal["NCHW", "NHWC"]:
        """Order of the input tensor's axes."""


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that model.toml and a bundle's manifest share: task, decoder and the settings of reading outputs."""

    task: Task
    decoder: str
    input: InputShape
    thresholds: Thresholds = Thresholds()
    classification: ClassificationSpec = ClassificationSpec()
    detection: DetectionSpec = DetectionSpec()
    embedding: EmbeddingSpec = EmbeddingSpec()
    anomaly: AnomalySpec = AnomalySpec()


def has_background(spec: TaskSpec) -> bool:
    """Tell whether output 0 of a classifier is the background, so that class ids start at output 1."""
    return TRAITS[spec.task].is_of_whole_picture and spec.classification.background_class


def labels_by_id(spec: TaskSpec, labels: Sequence[str]) -> dict[int, str]:
    """Map class ids, as in messages, to labels given in output order; -1 is a classifier's background or `unknown`."""
    numbered = enumerate(labels, start=-1 if has_background(spec) else 0)
    unknown = {-1: UNKNOWN} if TRAITS[spec.task].has_unknown else {}
    return unknown | {class_id: label or f"class_{class_id}" for class_id, label in numbered}
