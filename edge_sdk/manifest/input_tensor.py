"""InputTensor: in which form a model file takes its picture, where that is not the form of model.toml."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from edge_sdk.model_spec import InputSpec

InputType: TypeAlias = Literal["float32", "uint8"]


class InputTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a device gives a model file instead of what `input` says.

    Attributes:
        dtype: `float32`: levels less mean, by std; `uint8`: the resized picture's levels of 0-255 themselves.
        layout: order of the tensor's axes.
        color: order of its channels.
    """

    dtype: InputType
    layout: Literal["NCHW", "NHWC"]
    color: Literal["RGB", "BGR", "GRAY"]


def as_taken(spec: InputSpec, tensor: InputTensor | None) -> tuple[InputSpec, InputType]:
    """`spec` in the file's own layout and colour order, and the tensor's type."""
    if tensor is None:
        return spec, "float32"
    return msgspec.structs.replace(spec, layout=tensor.layout, color=tensor.color), tensor.dtype
