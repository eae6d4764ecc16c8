"""Variant: one model file of a bundle, and all that a device needs to choose it."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from edge_sdk.manifest.input_tensor import InputTensor
from edge_sdk.manifest.measured import Agreement, BoardEstimate, Quality
from edge_sdk.model_spec import SizeWh

Precision: TypeAlias = Literal["int8", "fp32", "fp16", "int8_dynamic"]
"""What a variant holds: INT8 by calibrated ranges; float; float of which the weights are stored in half; INT8 weights
with ranges of activations that are taken from each frame."""

_Unit = Annotated[float, Meta(ge=0, le=1)]
_NonNegative = Annotated[float, Meta(ge=0)]


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs and the outputs they must give.

    Attributes:
        file: an .npz: `image_I` uint8 (H, W, C) as they are after resizing, `output_I_J` the J-th output for image I,
            and for INT8 `noise_J` float32 (R,): root mean square of what quantization costs in every row of output J,
            whose rows stand along its shortest axis.
        count: number of images.
        absolute: allowed |got - expected|, in the outputs' own unit ...
        relative: ... plus this share of |expected|; or
        noise_share: in every row this share of its `noise_J`, as root mean square.
    """

    file: str
    count: Annotated[int, Meta(ge=1, le=16)]
    absolute: _NonNegative
    relative: _NonNegative
    noise_share: _Unit = 0.0


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model file that the bundle can run.

    Attributes:
        file: its name in the bundle: `model.NAME.ort`, or `.onnx` for a float model on x86_64.
        precision: of what it computes with.
        size_wh: of its input, in pixels; everything else about the input is the manifest's.
        golden: what is replayed before its first frame.
        operators: `domain:name` of each of its operators, sorted.
        host_latency_ms: median of one run on the machine that built it, one thread; not the device's. Those of one
            bundle were taken in turn, so that their ratios mean something. Where there is one model only, and it takes
            levels, less the operators that it runs no more.
        quality: by labels; None where the images have none.
        agreement: with FP32 at the manifest's own input size; None for that model itself.
        integer_mac_share: share of the multiply-accumulates that should run in integer kernels and did, read from a
            profile of this very file; None for float. Of convolutions outside the float tail; for `int8_dynamic` of
            products with weights.
        estimate: of its time on the target; None where nothing counted it.
        tensor: what it takes; None where that is what `input` says, in float32.
    """

    file: str
    precision: Precision
    size_wh: SizeWh
    golden: Golden
    operators: tuple[str, ...]
    host_latency_ms: _NonNegative
    quality: Quality | None = None
    agreement: Agreement | None = None
    integer_mac_share: _Unit | None = None
    estimate: BoardEstimate | None = None
    tensor: InputTensor | None = None

    @property
    def name(self) -> str:
        """The part of the file's name that differs, such as `int8` or `int8.320x320`."""
        return self.file.removeprefix("model.").removesuffix(".ort").removesuffix(".onnx")
