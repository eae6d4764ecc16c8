"""Measured: figures that a manifest promises, each with what it was measured on."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edge_sdk.manifest.input_tensor import InputTensor

_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
_Unit = Annotated[float, Meta(ge=0, le=1)]
_NonNegative = Annotated[float, Meta(ge=0)]


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far INT8 agrees with FP32 on images that calibration never saw.

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


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model file that the bundle can run.

    Attributes:
        file: its name in the bundle.
        precision: `int8` or `fp32`.
        host_latency_ms: median of one run on the machine that built it, one thread; not the device's.
            Where the file takes levels, less the operators that it runs no more.
        agreement: with FP32; None for FP32 itself.
        integer_mac_share: share of the convolutions' multiply-accumulates outside the float tail that ran in integer
            kernels, read from a profile of this very file; None for FP32.
        estimate: of its time on the target; None where nothing counted it.
        tensor: what it takes; None where that is what `input` says, in float32.
    """

    file: str
    precision: Literal["int8", "fp32"]
    host_latency_ms: _NonNegative
    agreement: Agreement | None = None
    integer_mac_share: _Unit | None = None
    estimate: BoardEstimate | None = None
    tensor: InputTensor | None = None


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
