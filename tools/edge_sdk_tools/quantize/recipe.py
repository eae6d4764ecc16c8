"""Recipe: everything that decides how a model file is made of the float model, as data."""

from __future__ import annotations

import msgspec

from edge_sdk.bundle.manifest import Precision
from edge_sdk.bundle.target import IntegerType, Target
from edge_sdk_tools.quantize.calibration import CALIBRATIONS, Calibration
from edge_sdk_tools.quantize.target_form import offsets_weights

_SHORT = {"QUInt8": "U8", "QInt8": "S8"}


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """One way to make a model file. A float model has only a precision, and a dynamic one its `reduce_range` too.

    Attributes:
        precision: of what the model computes with.
        activation_type, weight_type: integers.
        per_channel: a weight scale an output channel instead of one a tensor.
        reduce_range: 7-bit weights, for CPUs that would saturate.
        calibration: how ranges of activations are chosen.
        float_nodes: nodes left float beside the decoding tail.
        shared_scales: one scale for all that a Concat joins, so that joining is copying.
        leaves_room: wide convolutions' largest weight is one integer less, so that the core's form may offset them.
        core_form: the core, in qemu's spelling, as whose kernels like it the same integers are written; empty for none.
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
        """Whether zero is the middle of every activation's range, as signed integers want it."""
        return self.activation_type == "QInt8"

    @property
    def largest_weight(self) -> int:
        """The largest integer that a weight becomes, where weights are signed."""
        return 64 if self.reduce_range else 127

    @property
    def largest_wide_weight(self) -> int:
        """The same of wide convolutions."""
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
        """The recipe in words for people."""
        types = f"{_SHORT[self.activation_type]}{_SHORT[self.weight_type]}"
        scales = "per channel" if self.per_channel else "per tensor"
        bits = ", 7-bit weights" if self.reduce_range else ""
        room = f", wide kernels to {self.largest_wide_weight}" if self.leaves_room else ""
        joined = ", shared scales" if self.shared_scales else ""
        kept = f", {len(self.float_nodes)} nodes float" if self.float_nodes else ""
        return f"{types} {scales}{bits}{room}{joined}, {self.calibration}{kept}"


def first_recipe(target: Target, *, reduce_range: bool) -> Recipe:
    """Return the recipe with which every search starts: nothing but the tail is float, and Concats share scales.

    Of the recipes without float layers it runs the fewest counted instructions on every core that was counted
    (docs/arm-cost.md), and it is the fastest on x86.

    Args:
        target: says what its CPU likes.
        reduce_range: 7-bit weights, because this machine would saturate.
    """
    return Recipe(
        activation_type=target.activation_type,
        weight_type=target.weight_type,
        per_channel=target.per_channel,
        reduce_range=reduce_range,
        shared_scales=True,
        leaves_room=offsets_weights(target.cpu),
    )
