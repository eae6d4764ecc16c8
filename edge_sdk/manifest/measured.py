"""Measured: figures that a manifest promises, each with what it was measured on."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
_Unit = Annotated[float, Meta(ge=0, le=1)]
_NonNegative = Annotated[float, Meta(ge=0)]
_Change = Annotated[float, Meta(ge=-1, le=1)]


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a variant agrees with FP32 on images that calibration never saw.

    Attributes:
        metric: `top1_agreement` (share of equal top-1 classes), `detection_f1` (same class, matched at IoU .5) or
            `mean_iou` of class maps.
        value: 0-1.
        low, high: its 95 % interval over resampled images.
        images: how many were compared.
        reference_count: FP32's top-1 classes, detections or class maps.
    """

    metric: Literal["top1_agreement", "detection_f1", "mean_iou"]
    value: _Unit
    low: _Unit
    high: _Unit
    images: Annotated[int, Meta(ge=1)]
    reference_count: Annotated[int, Meta(ge=1)]


class Difference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much better a variant is than another model on the same images.

    Attributes:
        reference: the other one's name, as a variant has it, whether or not the bundle carries it: `fp32` is the float
            model at model.toml's own input size.
        value: the variant's figure less the reference's, -1 to 1; below 0 where the variant is worse.
        low, high: its 95 % interval over resampled images, paired: each sample is drawn for both models.
    """

    reference: str
    value: _Change
    low: _Change
    high: _Change

    @property
    def may_be_noise(self) -> bool:
        """Whether the images do not tell the two apart: the interval holds zero."""
        return self.low <= 0 <= self.high


class Quality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How good a variant is by the labels of images that calibration never saw.

    Attributes:
        metric: `top-1`, `mAP50-95` or `mIoU`.
        value: 0-1.
        low, high: its 95 % interval over resampled images.
        fp32: the float model's at model.toml's own input size, on the same images.
        images: how many were measured on.
        difference: to the float model, in pairs; None where the bundle was built before that was carried.
    """

    metric: str
    value: _Unit
    low: _Unit
    high: _Unit
    fp32: _Unit
    images: Annotated[int, Meta(ge=1)]
    difference: Difference | None = None


class BoardEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one inference is expected to take on the target, whose instructions were counted under emulation.

    Attributes:
        core: in qemu's spelling.
        million_instructions: of one inference on one thread.
        latency_ms: the estimate, on one thread, without preparation and decoding.
        low_ms, high_ms: the estimate divided and multiplied by the worst error that such estimates were seen to have.
    """

    core: str
    million_instructions: _NonNegative
    latency_ms: _NonNegative
    low_ms: _NonNegative
    high_ms: _NonNegative


class Distillation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the float model compares with the teacher that it was distilled from, on images that calibration never saw.

    Attributes:
        teacher: its name.
        teacher_sha256: of its ONNX model, or of its bundle's manifest.
        metric: `top-1`, `mAP50-95` or `mIoU` against labels; without labels agreement with the teacher.
        student: the model's figure.
        teacher_value: the teacher's; None where agreement is the figure.
        low, high: 95 % interval of student less teacher, -1 to 1, or of the agreement, 0-1.
        images: how many were compared.
        limit: the gate that it passed: least student less teacher, or least agreement.
        within_noise: whether the interval of the difference holds zero; None where agreement is the figure.
        line: all of it, for people.
    """

    teacher: str
    teacher_sha256: _Sha256
    metric: str
    student: float
    teacher_value: float | None
    low: float
    high: float
    images: Annotated[int, Meta(ge=1)]
    limit: Annotated[float, Meta(ge=-1, le=1)]
    within_noise: bool | None
    line: str
