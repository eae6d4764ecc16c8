"""InputTensor: in which form a model file takes its picture, where that is not the form of model.toml."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

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
