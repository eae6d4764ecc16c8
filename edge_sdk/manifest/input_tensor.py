"""InputTensor: in which form a model file takes its picture, where that is not the form of model.toml."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from edge_sdk.model_spec import InputSpec

InputType: TypeAlias = Literal["float32", "uint8"]
TensorColor: TypeAlias = Literal["RGB", "BGR", "GRAY", "RGBA", "BGRA"]

_CHANNELS = {"GRAY": 1, "RGB": 3, "BGR": 3, "RGBA": 4, "BGRA": 4}


class InputTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a device gives a model file instead of what `input` says.

    Attributes:
        dtype: `float32`: levels less mean, by std; `uint8`: integers.
        layout: order of the tensor's axes.
        color: order of its channels; of a fourth, A, the values do not matter.
        scale: of integers: by it, rounded to even and with `zero_point` added, the normalised value is an integer of
            0-255. None where the integers are the resized picture's levels themselves.
        zero_point: as `scale`; 0 without one.
    """

    dtype: InputType
    layout: Literal["NCHW", "NHWC"]
    color: TensorColor
    scale: Annotated[float, msgspec.Meta(gt=0)] | None = None
    zero_point: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0

    def __post_init__(self) -> None:
        if self.dtype == "float32" and (self.scale is not None or self.channels == 4):
            raise ValueError("float32 has neither a scale nor a fourth channel")
        if self.layout == "NCHW" and self.channels == 4:
            raise ValueError(f"{self.color} lies in planes, expected layout NHWC")

    @property
    def channels(self) -> int:
        """1, 3 or 4."""
        return _CHANNELS[self.color]

    def shape(self, size_wh: tuple[int, int]) -> tuple[int, int, int, int]:
        """Of a tensor with this width and height in pixels, batch 1."""
        width, height = size_wh
        return (1, self.channels, height, width) if self.layout == "NCHW" else (1, height, width, self.channels)


def floats_of(spec: InputSpec) -> InputTensor:
    """What `input` says: normalised float32 in the model's own layout and colour order."""
    return InputTensor(dtype="float32", layout=spec.layout, color=spec.color)
