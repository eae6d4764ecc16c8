"""Parts of raw outputs that are judged apart: boxes in pixels would drown scores of 0-1 in one sum."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.decoders import decoder_of

_BOX = 4


class Parts(msgspec.Struct, frozen=True):
    """How the raw outputs of one model are taken apart.

    Attributes:
        box_axis: where each tensor has four numbers of a box first, then scores; None where nothing is mixed.
        is_classifier: whether the largest value of the first output is the answer.
    """

    box_axis: int | None
    is_classifier: bool

    def of(self, outputs: Sequence[Tensor]) -> list[NDArray[np.generic]]:
        """The parts, copied."""
        values = [output.copy() for output in outputs]
        if self.box_axis is None:
            return values
        axis = self.box_axis
        return [
            part
            for value in values
            for part in (np.split(value, [_BOX], axis=axis) if value.ndim > 1 and value.shape[axis] > _BOX else [value])
        ]


def parts_of(spec: ModelSpec) -> Parts:
    """How the model of a model.toml is taken apart."""
    return Parts(decoder_of(spec).box_axis, spec.task == "classification")
