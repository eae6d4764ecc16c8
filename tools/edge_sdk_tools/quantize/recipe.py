"""Recipe: all settings that decide how a model file is made from the float model."""

from __future__ import annotations

import msgspec

from edge_sdk.bundle.manifest import Precision
from edge_sdk.bundle.target import IntegerType, Target
from edge_sdk_tools.quantize.calibration import CALIBRATIONS, Calibration
from edge_sdk_tools.quantize.target_form import offsets_weights

_SHORT = {"QUInt8": "U8", "QInt8": "S8"}


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one model file. For a float model only `precision` counts, for a dynamic one `reduce_range` too.

    Attributes:
        precision: the numbers that the model computes with.
        activation_type, weight_type: integer types of activations and weights.
        per_channel: whether each output channel has a weight scale, instead of one scale for the tensor.
        reduce_range: whether weights have 7 bits, for CPUs that would saturate.
        calibration: the method that chooses the ranges of activations.
        float_nodes: nodes that are left float in addition to the decoding tail.
        shared_scales: whether all inputs of a Concat have one scale, so that it only copies.
        leaves_room: whether the largest weight of wide convolutions is one integer less, so that the form for the core
            may offset the weights.
        core_form: the core, in qemu's spelling, for whose kernels the integers are written; empty for none.
    """

    precision: Precision = "int8"
    activation_type: IntegerType = "QUInt8"
    weight_type: IntegerType = "QInt8"
    per_channel: bool = True
    reduce_range: bool = False
    calibration: Calibration = CALIBRATIONS[0]
    float_nodes: tuple[str, ...] = ()
    shared_scales: bool = False
    leaves_room: bool = False
    core_form: str = ""

    @property
    def is_integer(self) -> bool:
        """Whether the model computes in integers."""
        return self.precision.startswith("int8")

    @property
    def is_symmetric(self) -> bool:
        """Whether zero is the middle of every activation's range, as signed integers require."""
        return self.activation_type == "QInt8"

    @property
    def largest_weight(self) -> int:
        """The largest integer that a weight becomes, where weights are signed."""
        return 64 if self.reduce_range else 127

    @property
    def largest_wide_weight(self) -> int:
        """The largest integer that a weight of a wide convolution becomes."""
        return self.largest_weight - 1 if self.leaves_room else self.largest_weight

    @property
    def settings(self) -> dict[str, str | int | bool]:
        """The recipe's settings by name, for the manifest."""
        return {
            "format": "QDQ",
            "calibration": self.calibration,
            "activation_type": self.activation_type,
            "weight_type": self.weight_type,
            "per_channel": self.per_channel,
            "reduce_range": self.reduce_range,
            "shared_scales": self.shared_scales,
            "leaves_room": self.leaves_room,
            "core_form": self.core_form,
        }

    @property
    def text(self) -> str:
        """The recipe in words."""
        types = f"{_SHORT[self.activation_type]}{_SHORT[self.weight_type]}"
        scales = "per channel" if self.per_channel else "per tensor"
        bits = ", 7-bit weights" if self.reduce_range else ""
        room = f", wide kernels to {self.largest_wide_weight}" if self.leaves_room else ""
        joined = ", shared scales" if self.shared_scales else ""
        kept = f", {len(self.float_nodes)} nodes float" if self.float_nodes else ""
        return f"{types} {scales}{bits}{room}{joined}, {self.calibration}{kept}"


def first_recipe(target: Target, *, reduce_range: bool) -> Recipe:
    """Return the recipe with which every search starts: only the tail is float, and inputs of a Concat share scales.

    Among the recipes without float layers it needs the fewest instructions on every core that was counted
    (docs/arm-cost.md), and it is the fastest on x86.

    Args:
        target: the target, which gives the integer types.
        reduce_range: whether weights have 7 bits, because this machine would saturate.
    """
    return Recipe(
        activation_type=target.activation_type,
        weight_type=target.weight_type,
        per_channel=target.per_channel,
        reduce_range=reduce_range,
        shared_scales=True,
        leaves_room=offsets_weights(target.cpu),
    )
