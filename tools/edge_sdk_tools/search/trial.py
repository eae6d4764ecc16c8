"""Trial: one recipe, built and measured."""

from __future__ import annotations

import msgspec

from edge_sdk_tools.convert import Converted
from edge_sdk_tools.prove import Proof
from edge_sdk_tools.quantize import Quantized
from edge_sdk_tools.search.shortfall import BoardTimes, Shortfall, relative_drop


class Trial(msgspec.Struct, frozen=True, eq=False):
    """What came of a recipe.

    Attributes:
        quantized: the QDQ model.
        converted: in ORT format.
        proof: what was measured of that.
        shortfall: why it does not hold; None when it does.
        board: its times on the target's core; None where nothing counted them.
    """

    quantized: Quantized
    converted: Converted
    proof: Proof
    shortfall: Shortfall | None
    board: BoardTimes | None = None

    @property
    def row(self) -> Tried:
        """What reports say of it."""
        evaluation = self.proof.evaluation
        figure = next(iter((*evaluation.quality, *evaluation.agreement)))
        return Tried(
            recipe=self.quantized.recipe.text,
            metric=figure.name,
            value=figure.value.value,
            drop_relative=relative_drop(self.proof),
            latency_ratio=self.proof.latency_ms / self.proof.fp32_latency_ms,
            problem=self.shortfall.line if self.shortfall else None,
        )


class Tried(msgspec.Struct, frozen=True):
    """A trial, for people.

    Attributes:
        recipe: in words.
        metric, value: what was judged, 0-1.
        drop_relative: the share of FP32's value that is lost, below 0 where INT8 is better; 1 - value without labels.
        latency_ratio: to FP32 on this machine, one thread.
        problem: why it does not hold; None when it does.
        carried: the bundle has it; where it does not hold all the same, that may be noise.
    """

    recipe: str
    metric: str
    value: float
    drop_relative: float
    latency_ratio: float
    problem: str | None
    carried: bool = False
