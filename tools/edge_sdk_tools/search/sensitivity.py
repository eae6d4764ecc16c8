"""Sensitivity: how much noise each layer's integers alone put into the outputs.

A layer is a convolution or matrix product with its activation, whatever nodes that takes: SiLU is a Sigmoid and a Mul.
Left in integers, an activation would take away what its layer gains in float. The module ranks the layers that return
to float: those with the most noise for the least work come first, and operators without weights come last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from edge_sdk.bundle.golden import judged_rows
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.evaluate.evaluation import OnProgress
from edge_sdk_tools.graph.index import GraphIndex
from edge_sdk_tools.graph.profile import register_extensions
from edge_sdk_tools.jobs.runner import JobRunner
from edge_sdk_tools.jobs.store import key_of
from edge_sdk_tools.quantize.quantize import quantized_proto
from edge_sdk_tools.quantize.recipe import Recipe
from edge_sdk_tools.quantize.simplified import WEIGHTED, Simplified

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
        """The accuracy gained by keeping the layer in float, divided by its cost."""
        return self.noise / (self.macs_share + _CHEAP)


class Ranking:
    """The data that ranking the layers needs."""

    def __init__(
        self,
        model: Simplified,
        recipe: Recipe,
        ranges: Mapping[str, tuple[float, float]],
        tensors: Sequence[Tensor],
    ) -> None:
        self.model, self.recipe, self.ranges, self.tensors = model, recipe, dict(ranges), list(tensors)
        self.expected = _outputs(model.proto, tensors)
        model_bytes = model.proto.SerializeToString(deterministic=True)
        self.digest = key_of("ranking", recipe, self.ranges, model_bytes, *(tensor.tobytes() for tensor in tensors))


class Layer(msgspec.Struct, frozen=True):
    """What is judged together: the operators' type and the nodes' names."""

    operator: str
    nodes: tuple[str, ...]

    def key(self, ranking: Ranking) -> str:
        """Names it by all that decides its noise."""
        return key_of("layer", ranking.digest, self)


def noise_of(layer: Layer, ranking: Ranking) -> float:
    """The noise of one layer's integers in the outputs, as `Sensitivity` has it."""
    proto, inside = ranking.model.proto, set(layer.nodes)
    outside = [node.name for node in proto.graph.node if node.name not in inside]
    alone = _outputs(quantized_proto(proto, ranking.ranges, ranking.recipe, outside), ranking.tensors)
    return float(np.mean([_noise(a, b) for a, b in zip(alone, ranking.expected, strict=True)]))


def rank_layers(ranking: Ranking, job_runner: JobRunner, on_progress: OnProgress) -> list[Sensitivity]:
    """Layers whose integers cost quality, those first whose return to float is worth most."""
    model = ranking.model
    layers = layers_of(model.proto, set(model.tail))
    noises = job_runner.run(
        noise_of,
        layers,
        shared=ranking,
        key=lambda layer: layer.key(ranking),
        result=float,
        on_done=lambda one: on_progress("rank layers", one.done, one.total),
    )
    total = max(1, sum(model.macs.values()))
    found = [
        Sensitivity(layer.nodes, layer.operator, noise, sum(model.macs.get(name, 0) for name in layer.nodes) / total)
        for layer, noise in zip(layers, noises, strict=True)
    ]
    telling = _TELLING * sum(one.noise for one in found)
    return sorted(
        (one for one in found if one.noise > telling), key=lambda one: (one.operator not in WEIGHTED, -one.worth)
    )


_ACTIVATIONS = (
    "Clip",
    "Elu",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "PRelu",
    "Relu",
    "Sigmoid",
    "Tanh",
)
_GATES = ("HardSigmoid", "Sigmoid", "Tanh")


def layers_of(proto: onnx.ModelProto, tail: set[str]) -> list[Layer]:
    """Each layer with its activation; then the other operators by their type. Nodes of `tail` are left out."""
    links = GraphIndex(proto.graph)
    layers: list[Layer] = []
    others: dict[str, list[str]] = {}
    taken: set[str] = set()
    for node in proto.graph.node:
        if node.name in tail or node.name in taken:
            continue
        if node.op_type not in WEIGHTED:
            others.setdefault(node.op_type, []).append(node.name)
            continue
        activation = [after.name for after in _activation(node, links) if after.name not in tail]
        taken.update(activation)
        layers.append(Layer(node.op_type, (node.name, *activation)))
    return layers + [
        Layer(kind, tuple(name for name in names if name not in taken))
        for kind, names in others.items()
        if any(name not in taken for name in names)
    ]


def _activation(layer: onnx.NodeProto, links: GraphIndex) -> list[onnx.NodeProto]:
    """The nodes of a layer's activation: one, or a gate and the Mul that applies it; none where it has none."""
    after = links.readers(layer.output[0])
    if len(after) == 1:
        return after if after[0].op_type in _ACTIVATIONS else []
    gate = next((node for node in after if node.op_type in _GATES), None)
    product = next((node for node in after if node.op_type == "Mul"), None)
    is_gated = len(after) == 2 and gate and product and gate.output[0] in product.input
    return [gate, product] if is_gated and gate and product else []


def with_inner_nodes(proto: onnx.ModelProto, names: Sequence[str]) -> tuple[str, ...]:
    """Float nodes, and those without weights between them or the image: all that they read and give is float.

    Integers there would only be made to be undone.

    Returns:
        Names, in the graph's order.
    """
    links, given, inside = GraphIndex(proto.graph), set(names), set(names)
    makers = {name: node for name, node in links.makers.items() if node.op_type != "Constant"}
    for node in proto.graph.node:
        sources = [makers[name].name for name in node.input if name in makers]
        reads_image = any(name not in links.makers and name not in links.constants for name in node.input if name)
        if node.op_type not in WEIGHTED and (sources or reads_image) and inside.issuperset(sources):
            inside.add(node.name)
    for node in reversed(proto.graph.node):
        readers = [reader.name for name in node.output for reader in links.readers(name)]
        if node.name not in given and not (readers and inside.issuperset(readers)):
            inside.discard(node.name)
    return tuple(node.name for node in proto.graph.node if node.name in inside)


def _outputs(proto: onnx.ModelProto, tensors: Sequence[Tensor]) -> list[NDArray[np.float64]]:
    """Every output of every tensor, float64 (R, N)."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    model = proto.SerializeToString()
    register_extensions(options, model)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return [judged_rows(np.asarray(out)) for tensor in tensors for out in session.run(None, {name: tensor})]


def _noise(got: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    error = ((got - expected) ** 2).sum(axis=1)
    return float(np.minimum(error / ((expected**2).sum(axis=1) + _TINY), 1.0).mean())
