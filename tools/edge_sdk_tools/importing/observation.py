"""What a model says on every probe before its import.

Owns what can be seen without a conversion: random outputs, outputs that come and go, numbers that are not finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.importing.comparison import measure_difference
from edge_sdk_tools.importing.probe import Probe


class Original(Protocol):
    """A model where it comes from."""

    @property
    def where(self) -> str:
        """What to call it in errors."""
        ...

    def __call__(self, tensor: Tensor, /) -> Mapping[str, Tensor]:
        """The outputs by name, for one input; the caller may keep them."""
        ...


class Observation(msgspec.Struct, frozen=True, eq=False):
    """What was said.

    Attributes:
        names: of the outputs, in order.
        outputs: one tuple a probe.
    """

    names: tuple[str, ...]
    outputs: tuple[tuple[Tensor, ...], ...]


def observe(model: Original, probes: Sequence[Probe]) -> Observation:
    """Run the model on every probe, and twice on those that are no real image.

    Raises:
        ModelError: it fails, says something else the second time, or is not finite on a real image.
    """
    said = [_observe_once(model, probe) for probe in probes]
    names = tuple(said[0])
    for probe, outputs in zip(probes, said, strict=True):
        if tuple(outputs) != names:
            raise ModelError(
                f"{model.where}: has outputs {', '.join(outputs)} on input {probe.name!r} and {', '.join(names)} on "
                f"{probes[0].name!r}, expected the same ones always"
            )
    return Observation(names, tuple(tuple(outputs.values()) for outputs in said))


def _observe_once(model: Original, probe: Probe) -> Mapping[str, Tensor]:
    tensor = probe.make()
    outputs = model(tensor)
    again = outputs if probe.is_image else model(tensor)
    for name, value in outputs.items():
        if probe.is_image and not np.isfinite(value).all():
            raise ModelError(
                f"{model.where}: output {name!r} is not finite on {probe.name}; check mean, std and weights"
            )
        second = again.get(name)
        if second is None or not _agree(probe, second, value):
            raise ModelError(
                f"{model.where}: output {name!r} differs between two runs on input {probe.name!r}; it draws random "
                "numbers or remembers earlier inputs, take that out of it"
            )
    return outputs


def _agree(probe: Probe, a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and measure_difference("", probe, a, b)[1] is None
