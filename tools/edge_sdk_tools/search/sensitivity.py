"""Sensitivity: how much noise each layer's integers alone put into the outputs.

Owns the ranking by which layers return to float: most noise for least work first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from edge_sdk.frame import Tensor
from edge_sdk_tools.quantize import WEIGHTED, Activations, Recipe, Simplified, quantized_proto

_CHEAP = 0.002  # of all work: what a layer costs in float at least, however small it is
_TELLING = 0.01  # of all noise: who puts in less is left alone
_TINY = 1e-30


class Sensitivity(msgspec.Struct, frozen=True):
    """One layer, or all operators of a type that have no weights.

    Attributes:
        nodes: their names.
        operator: their type.
        noise: mean over the outputs' channels of squared error over squared signal, 0-1, with only these in INT8.
        macs_share: of the model's multiply-accumulates, 0-1.
    """

    nodes: tuple[str, ...]
    operator: str
    noise: float
    macs_share: float

    @property
    def worth(self) -> float:
        """What is gained by float, for what it costs."""
        return self.noise / (self.macs_share + _CHEAP)


def rank_layers(
    model: Simplified,
    activations: Activations,
    recipe: Recipe,
    tensors: Sequence[Tensor],
    on_layer: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Sensitivity]:
    """Layers whose integers cost quality, those first whose return to float is worth most.

    Args:
        model: simplified.
        activations: of calibration images.
        recipe: in whose integers.
        tensors: a few prepared images.
        on_layer: called with layers done and layers in all.
    """
    groups = _groups(model.proto, set(model.tail))
    everything = [node.name for node in model.proto.graph.node]
    expected = _outputs(model.proto, tensors)
    ranges = activations.ranges(recipe.calibration)
    total = max(1, sum(model.macs.values()))
    found = []
    for done, (operator, nodes) in enumerate(groups, start=1):
        inside = set(nodes)
        alone = quantized_proto(model.proto, ranges, recipe, [name for name in everything if name not in inside])
        noise = float(np.mean([_noise(a, b) for a, b in zip(_outputs(alone, tensors), expected, strict=True)]))
        found.append(Sensitivity(nodes, operator, noise, sum(model.macs.get(name, 0) for name in nodes) / total))
        on_layer(done, len(groups))
    telling = _TELLING * sum(one.noise for one in found)
    return sorted((one for one in found if one.noise > telling), key=lambda one: -one.worth)


def _groups(proto: onnx.ModelProto, tail: set[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Each layer with the Relu or Clip that becomes one with it; the other operators by their type."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in proto.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    layers: list[tuple[str, tuple[str, ...]]] = []
    others: dict[str, list[str]] = {}
    taken: set[str] = set()
    for node in proto.graph.node:
        if node.name in tail or node.name in taken:
            continue
        if node.op_type not in WEIGHTED:
            others.setdefault(node.op_type, []).append(node.name)
            continue
        after = readers.get(node.output[0], [])
        fused = [n.name for n in after if len(after) == 1 and n.op_type in ("Relu", "Clip") and n.name not in tail]
        taken.update(fused)
        layers.append((node.op_type, (node.name, *fused)))
    return layers + [
        (kind, tuple(name for name in names if name not in taken))
        for kind, names in others.items()
        if any(name not in taken for name in names)
    ]


def _outputs(proto: onnx.ModelProto, tensors: Sequence[Tensor]) -> list[NDArray[np.float64]]:
    """Every output of every tensor, float64, channels first."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return [_by_channel(np.asarray(out)) for tensor in tensors for out in session.run(None, {name: tensor})]


def _by_channel(output: NDArray[np.float32]) -> NDArray[np.float64]:
    """Rows are what must be judged apart: boxes in pixels and scores of 0-1 share a tensor, on its shortest axis."""
    values = output.reshape(output.shape[1:]) if output.ndim > 1 and output.shape[0] == 1 else output
    if values.ndim < 2:
        return values.reshape(1, -1).astype(np.float64)
    shortest = int(np.argmin(values.shape))
    return np.moveaxis(values, shortest, 0).reshape(values.shape[shortest], -1).astype(np.float64)


def _noise(got: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    error = ((got - expected) ** 2).sum(axis=1)
    return float(np.minimum(error / ((expected**2).sum(axis=1) + _TINY), 1.0).mean())
