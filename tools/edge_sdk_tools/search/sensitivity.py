"""Noise of single layers: what the integers of each layer cost the outputs, and what they cost the layer itself.

A layer is a convolution or matrix product with its activation, whatever nodes that takes: SiLU is a Sigmoid and a Mul.
Left in integers, an activation would take away what its layer gains in float. `rank_layers` runs the model once for
each layer, with only that layer in integers, and ranks the layers that return to float: those with the most noise come
first, and operators without weights come last. `local_noise` says what quantization does to the
numbers that one layer reads. It is computed from histograms and weights in milliseconds; a layer with much noise here
may still matter little, because the layers after it average it away.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from edge_sdk.bundle.bundle import judged_rows
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.graph.index import GraphIndex, attribute
from edge_sdk_tools.jobs.results import key_of
from edge_sdk_tools.jobs.runner import JobRunner, OnProgress
from edge_sdk_tools.prove.parity import Share
from edge_sdk_tools.quantize.calibration import Activations, Histogram
from edge_sdk_tools.quantize.quantize import Recipe, quantized_proto
from edge_sdk_tools.quantize.simplified import WEIGHTED, Simplified, open_session

_TELLING = 0.001  # of all noise, most of which a few layers make: who puts in less is left alone
_TINY = 1e-30
_ELEMENTWISE = (
    *("Add", "Clip", "Div", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Mul", "PRelu"),
    *("Relu", "Sigmoid", "Softplus", "Sub", "Tanh"),
)
_LEVELS = {"uint8": (0, 255), "int8": (-128, 127)}


class Sensitivity(msgspec.Struct, frozen=True):
    """One layer with its fused Relu or Clip, or all operators of a type that have no weights.

    `noise` is the mean over the outputs' channels of squared error over squared signal, 0-1, with only these in INT8.
    """

    nodes: tuple[str, ...]
    operator: str
    noise: float
    macs_share: float


class Ranking:
    """The data that ranking the layers needs."""

    def __init__(
        self, model: Simplified, recipe: Recipe, ranges: Mapping[str, tuple[float, float]], tensors: Sequence[Tensor]
    ) -> None:
        self.model, self.recipe, self.ranges, self.tensors = model, recipe, dict(ranges), list(tensors)
        self.expected = _outputs(model.proto, tensors)
        model_bytes = model.proto.SerializeToString(deterministic=True)
        self.digest = key_of("ranking", recipe, self.ranges, model_bytes, *(tensor.tobytes() for tensor in tensors))


class Layer(msgspec.Struct, frozen=True):
    """The nodes that are judged together, and their operator."""

    operator: str
    nodes: tuple[str, ...]


def noise_of(layer: Layer, ranking: Ranking) -> float:
    """Return the noise that one layer's integers put into the outputs, as `Sensitivity` has it."""
    proto, inside = ranking.model.proto, set(layer.nodes)
    outside = [node.name for node in proto.graph.node if node.name not in inside]
    alone = _outputs(quantized_proto(proto, ranking.ranges, ranking.recipe, outside), ranking.tensors)
    return float(np.mean([_noise(a, b) for a, b in zip(alone, ranking.expected, strict=True)]))


def rank_layers(ranking: Ranking, job_runner: JobRunner, on_progress: OnProgress) -> list[Sensitivity]:
    """Return the layers whose integers cost quality, those with the most noise first."""
    model = ranking.model
    layers = layers_of(model.proto, set(model.tail))
    noises = job_runner.run(
        noise_of,
        layers,
        shared=ranking,
        key=lambda layer: key_of("layer", ranking.digest, layer),
        result=float,
        on_done=lambda done, total: on_progress("rank layers", done, total),
    )
    total = max(1, sum(model.macs.values()))
    found = [
        Sensitivity(layer.nodes, layer.operator, noise, sum(model.macs.get(name, 0) for name in layer.nodes) / total)
        for layer, noise in zip(layers, noises, strict=True)
    ]
    least = _TELLING * sum(one.noise for one in found)
    telling = [one for one in found if one.noise > least]
    return sorted(telling, key=lambda one: (one.operator not in WEIGHTED, -one.noise))


def layers_of(proto: onnx.ModelProto, tail: set[str]) -> list[Layer]:
    """Return each layer with its activation, then the other operators by their type. Nodes of `tail` are left out."""
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
    """Return the nodes of a layer's activation, in any form: those that compute on each value of the layer alone."""
    found: list[onnx.NodeProto] = []
    own, waiting = set(layer.output), links.readers(layer.output[0])
    while waiting:
        node = waiting.pop(0)
        is_new = node.op_type in _ELEMENTWISE and node.output[0] not in own
        if is_new and own.issuperset(name for name in node.input if name in links.makers):
            own.update(node.output)
            found.append(node)
            waiting += links.readers(node.output[0])
    return found


def with_inner_nodes(proto: onnx.ModelProto, names: Sequence[str]) -> tuple[str, ...]:
    """Float nodes, and those without weights between them or the image: all that they read and give is float.

    Integers there would only be made to be undone. Names are returned in the graph's order.
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
    session = open_session(proto.SerializeToString())
    name = session.get_inputs()[0].name
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        runs = threads.map(lambda tensor: session.run(None, {name: tensor}), tensors)
        return [judged_rows(np.asarray(out)) for run in runs for out in run]


def _noise(got: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    error = ((got - expected) ** 2).sum(axis=1)
    return float(np.minimum(error / ((expected**2).sum(axis=1) + _TINY), 1.0).mean())


class LayerNoise(msgspec.Struct, frozen=True, kw_only=True):
    """How much quantization disturbs what one layer reads; what that does to the outputs is not known from it.

    Attributes:
        activation_sqnr_db: signal to quantization noise of its input on the calibration images, decibels; None where
            that is not quantized, or exact.
        weight_sqnr_db: the same of its weights.
        sqnr_db: of both together.
        macs_share: of the model's multiply-accumulates, 0-1.
    """

    node: str
    operator: str
    activation_sqnr_db: float | None = None
    weight_sqnr_db: float | None = None
    sqnr_db: float | None = None
    macs_share: Share | None = None


def decibels(noise: float | None) -> float | None:
    """Return the signal to noise ratio of noise over signal; None for none, or where it is not known."""
    return -10 * math.log10(noise) if noise else None


def local_noise(model: Simplified, activations: Activations, quantized: onnx.ModelProto) -> tuple[LayerNoise, ...]:
    """Return the noise of every layer with weights that computes in integers, in graph order."""
    before, links = GraphIndex(model.proto.graph), GraphIndex(quantized.graph)
    total = max(1, sum(model.macs.values()))
    floats = {node.name: node for node in model.proto.graph.node}
    found = []
    for node in quantized.graph.node:
        original = floats.get(node.name)
        if node.op_type not in WEIGHTED or original is None or len(node.input) < 2:
            continue
        activation = _activation_noise(node.input[0], links, activations.histograms)
        weight = _weight_noise(node.input[1], links, before.value(original.input[1]))
        if activation is not None or weight is not None:
            layer = LayerNoise(
                node=node.name,
                operator=str(node.op_type),
                activation_sqnr_db=decibels(activation),
                weight_sqnr_db=decibels(weight),
                sqnr_db=decibels((activation or 0.0) + (weight or 0.0)),
                macs_share=model.macs.get(node.name, 0) / total,
            )
            found.append(layer)
    return tuple(found)


def _activation_noise(name: str, links: GraphIndex, histograms: Mapping[str, Histogram]) -> float | None:
    dequantize = links.makers.get(name)
    quantize = links.maker(dequantize.input[0], "QuantizeLinear") if dequantize else None
    if quantize is None or quantize.input[0] not in histograms:
        return None
    scale, zero = (numpy_helper.to_array(links.constants[part]) for part in quantize.input[1:3])
    least, most = _LEVELS[zero.dtype.name]
    step, offset = float(scale.item()), int(zero.item())
    return _noise_of(histograms[quantize.input[0]], step, (least - offset) * step, (most - offset) * step)


def _weight_noise(name: str, links: GraphIndex, original: NDArray[Any] | None) -> float | None:
    dequantize = links.maker(name, "DequantizeLinear")
    if original is None or dequantize is None or dequantize.input[0] not in links.constants:
        return None
    parts = (numpy_helper.to_array(links.constants[part]) for part in dequantize.input[:3])
    integers, scale, zero = (part.astype(np.float32) for part in parts)
    if scale.ndim:
        axis = attribute(dequantize, "axis", 1) % integers.ndim
        shape = [-1 if place == axis else 1 for place in range(integers.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    wanted = original.astype(np.float32, copy=False)
    if wanted.shape != integers.shape:
        return None
    error = (integers - zero) * scale - wanted
    return float(np.vdot(error, error) / (np.vdot(wanted, wanted) + _TINY))


def _noise_of(histogram: Histogram, step: float, low: float, high: float) -> float:
    """Return the error's energy over the signal's, when values are rounded to steps and cut off at low and high."""
    values, counts = histogram.values()
    # Off by step^2 / 12 in the mean (Bennett, Spectra of quantized signals, 1948); what rounds to 0 by itself, less.
    rounding = np.minimum(values**2, step**2 / 12)
    error = np.where(values < low, (values - low) ** 2, np.where(values > high, (values - high) ** 2, rounding))
    return float((counts * error).sum() / ((counts * values**2).sum() + _TINY))
