"""Schema of the sections of model.toml and manifest that describe how to read a model's outputs.

`ModelSpec` and `Manifest` hold these sections and are `TaskSpec`s. `TRAITS` says what the program asks about a task.
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
"""How far two models of a task agree, as the manifest names it."""

Truths = Literal["classes", "boxes", "masks", "texts"]
"""What labelled images hold."""


class TaskTraits(NamedTuple):
    """What the program asks about a task, wherever it does not matter how its outputs are read.

    Attributes:
        truths: what labelled images hold for it, in words; the formats of labels say what they hold.
        thresholds: which of the section [thresholds] it has.
        side_px: the usual side of its models' input.
        is_of_whole_picture: an answer is about the whole picture, and has one score a class.
        has_objects: an answer is boxes, which are counted, and never show a background.
        has_class_map: an answer is one class a cell.
        has_unknown: an answer may be `unknown`, whose class id is -1.
    """

    truths: Truths
    thresholds: tuple[str, ...] = ()
    side_px: int = 224
    is_of_whole_picture: bool = False
    has_objects: bool = False
    has_class_map: bool = False
    has_unknown: bool = False


UNKNOWN = "unknown"
"""Label of what resembles nothing in a gallery; its class id is -1."""

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
    """Raise a ValueError for numbers that TOML can write and no model can use."""
    for value in values:
        if not math.isfinite(value) or (positive and value <= 0):
            raise ValueError(f"{key} holds {value}, expected {'positive' if positive else 'finite'} numbers")


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [thresholds]: when an answer counts.

    Attributes:
        confidence: what is less confident is dropped, 0-1: a detection, a class of several that do not exclude each
            other, the match of an embedding, a text, or an anomaly's score.
        iou: of two detections that overlap by more than this, 0-1, the less confident is dropped.
    """

    confidence: _Unit = 0.25
    iou: _Unit = 0.45


class ClassificationSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [classification]: how a classifier's outputs are read.

    Attributes:
        background_class: output 0 is "background"; class_id everywhere is the output's index - 1.
        top_k: number of classes in a result.
    """

    background_class: bool = False
    top_k: Annotated[int, Meta(ge=1, le=1000)] = 5


class DetectionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [detection]: how a detector's raw outputs are read.

    Attributes:
        anchors: for `yolov4`: one list an output, of (width, height) in input pixels. For `ssd`: one list a level, the
            sizes of its priors; empty where the model decodes its boxes itself.
        scale_xy: for `yolov4`: Darknet's `scale_x_y`, one an output.
        strides: for `ssd`: one a list of anchors, in input pixels.
        variances: for `ssd` with anchors: what offsets and logarithms of sizes were divided by.
        box_order: for `ssd`: x or y first.
        box_unit: for `ssd` without anchors: parts of the input's width and height, or its pixels.
        background_class: for `ssd`: the first score is the background's, which no label names. For `tensorflow_nms` and
            `torchvision_nms`: class 1 is the first label's, else class 0.
        scores: for `ssd`, `efficientdet` and `centernet`: whether they lie between 0 and 1 already.
        reg_max: for `nanodet`: the largest distance of a box's side, in strides.
        keypoints: for decoders of poses: the number of points of an object, and of values of a point, 2 or 3.
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
    """The section [embedding]: what results of an embedding hold; `vector`: the vector too, beside the name."""

    vector: bool = False


class AnomalySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [anomaly]; `score_range`: the model's scores that count as 0 and as 1."""

    score_range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_finite("score_range", self.score_range)
        if self.score_range[0] >= self.score_range[1]:
            raise ValueError(f"score_range is {list(self.score_range)}, expected the lower score first")


class InputShape(Protocol):
    """What reading outputs needs to know of a model's input."""

    @property
    def size_wh(self) -> tuple[int, int]:
        """Width and height in pixels."""

    @property
    def layout(self) -> Literal["NCHW", "NHWC"]:
        """Order of the tensor's axes."""


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What says how outputs are read: the keys that model.toml and a bundle's manifest share."""

    task: Task
    decoder: str
    input: InputShape
    thresholds: Thresholds = Thresholds()
    classification: ClassificationSpec = ClassificationSpec()
    detection: DetectionSpec = DetectionSpec()
    embedding: EmbeddingSpec = EmbeddingSpec()
    anomaly: AnomalySpec = AnomalySpec()


def has_background(spec: TaskSpec) -> bool:
    """Whether output 0 is the background of a classifier, which class ids do not count."""
    return TRAITS[spec.task].is_of_whole_picture and spec.classification.background_class


def labels_by_id(spec: TaskSpec, labels: Sequence[str]) -> dict[int, str]:
    """Return labels in output order by class id, as in messages: -1 is a classifier's background, or `unknown`."""
    numbered = enumerate(labels, start=-1 if has_background(spec) else 0)
    unknown = {-1: UNKNOWN} if TRAITS[spec.task].has_unknown else {}
    return unknown | {class_id: label or f"class_{class_id}" for class_id, label in numbered}
