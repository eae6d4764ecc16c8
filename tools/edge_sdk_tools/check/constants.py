"""Check a model's constants: as many values as their shape says, and finite numbers where layers compute with them.

Bounds of Clip, masks and fill values may be infinite; weights of layers may not. `check_training` also finds operators
that training left in the graph, or whose result differs from run to run: such a model runs and gives wrong results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from edge_sdk_tools.check.model_file import Weights, tensors
from edge_sdk_tools.check.report import Finding, RefusedModelError, error, note, show_shape
from edge_sdk_tools.graph.index import Value, constants_of, element_count, element_name, nodes_of

LAYERS = (
    *("BatchNormalization", "Conv", "ConvTranspose", "DeformConv", "GRU", "Gemm", "GroupNormalization"),
    *("InstanceNormalization", "LSTM", "LayerNormalization", "MatMul", "PRelu", "RNN"),
)
"""Operators that compute with their constants: one infinite weight makes every result infinite or NaN."""

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_VARIANCE = 4  # index of the variance among the inputs of BatchNormalization
_SHOWN = 20
_AGAIN = "export the model again"


def check_data(proto: onnx.ModelProto) -> None:
    """Raise RefusedModelError for a constant of a skeleton whose data does not fit its shape and type."""
    inside_functions = [t for f in proto.functions for t in tensors(onnx.GraphProto(node=f.node))]
    for tensor in (*tensors(proto.graph), *inside_functions):
        if tensor.data_type != TensorProto.STRING:
            _check_data(tensor)


def _check_data(tensor: onnx.TensorProto) -> None:
    name = element_name(tensor.data_type)
    if tensor.HasField("segment"):
        raise RefusedModelError(f"constant {tensor.name!r} is written in segments, which nobody reads", _AGAIN)
    if name is None or min(tensor.dims, default=0) < 0:
        raise RefusedModelError(f"constant {tensor.name!r} has no type and shape that ONNX knows", _AGAIN)
    size = Value(name, tuple(tensor.dims)).bytes or 0
    if tensor.HasField("raw_data"):
        held, unit, allowed = len(tensor.raw_data), "bytes", {size}
    else:
        lists = (tensor.float_data, tensor.double_data, tensor.int32_data, tensor.int64_data, tensor.uint64_data)
        count = element_count(tensor.dims) * (2 if name.startswith("complex") else 1)
        # Types of less than a byte are written packed.
        held, unit, allowed = sum(map(len, lists)), "values", {count, min(count, size)}
    if held not in allowed:
        what = f"constant {tensor.name!r} has shape {show_shape(tuple(tensor.dims))} and holds {held} {unit}"
        raise RefusedModelError(f"{what}, expected {max(allowed)}", _AGAIN)


def check_numbers(proto: onnx.ModelProto, weights: Weights) -> list[Finding]:
    """Return findings on NaN in constants, infinite weights of layers, and variances below 0; 20 findings at most."""
    uses: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for node in nodes_of(proto.graph.node):
        for index, name in enumerate(node.input):
            uses[name].append((node.op_type, index))
    arrays = [(name, array) for name, array in weights.items() if array.dtype.kind == "f"]
    arrays += [
        (name, numpy_helper.to_array(t)) for name, t in constants_of(proto.graph).items() if t.data_type in _FLOATS
    ]
    return [finding for name, array in arrays for finding in _judge(name, array, uses[name])][:_SHOWN]


def _judge(name: str, array: NDArray[np.generic], uses: list[tuple[str, int]]) -> Iterator[Finding]:
    of = f"of its {array.size} values"
    if nans := int(np.isnan(array).sum()):
        step = "the training diverged, or the export went wrong: take an earlier checkpoint"
        yield error("nan-weight", f"weight {name!r}: {nans} {of} are NaN", step, name)
    layer = next((operator for operator, index in uses if operator in LAYERS and index > 0), None)
    if layer and (infinities := int(np.isinf(array).sum())):
        what = f"weight {name!r} of {layer}: {infinities} {of} are infinite"
        yield error("infinite-weight", what, "export it in float32", name)
    if ("BatchNormalization", _VARIANCE) in uses and array.size and array.min() < 0:
        what = f"variance {name!r} of BatchNormalization goes down to {array.min():.3g}, expected 0 or more"
        yield error("variance", what, _AGAIN, name)


RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""Operators that draw random numbers."""

_TRAINING_MODE_INPUT = 2  # index of `training_mode` among the inputs of Dropout since opset 12
_EVAL = "export it in evaluation mode: model.eval()"


def check_training(proto: onnx.ModelProto) -> list[Finding]:
    """Return findings on active dropout, batch normalisation in training mode, losses and random numbers."""
    constants = constants_of(proto.graph)
    findings = [f for node in nodes_of(proto.graph.node) for f in _check_node(node, constants)]
    if proto.training_info:
        what = "holds how to train it (training_info); a device does not need that, and it is left out"
        step = "nothing to do; model.ClearField('training_info') takes it out of the file too"
        findings.append(note("training", what, step))
    return findings


def _check_node(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> Iterator[Finding]:
    where = f"node {node.name!r} ({node.op_type})"
    what, step = "", _EVAL
    if node.op_type == "Dropout" and _drops(node, constants):
        what = "drops values at random: its training_mode is true or not fixed"
    elif node.op_type == "BatchNormalization" and _learns(node):
        what = "is in training mode: it normalises by the picture, not by what it learned"
    elif node.op_type in RANDOM:
        what = "draws random numbers: every run gives another result"
        step = "export it without; golden outputs could not be replayed"
    elif node.op_type in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        what, step = "computes a loss", "export the model alone, without its loss"
    if what:
        yield error("training", f"{where} {what}", step, node.name)


def _drops(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Tell whether a Dropout is active: its `training_mode`, an input since opset 12, is true or not constant."""
    if len(node.input) <= _TRAINING_MODE_INPUT or not node.input[_TRAINING_MODE_INPUT]:
        return False
    mode = constants.get(node.input[_TRAINING_MODE_INPUT])
    return mode is None or mode.data_type != TensorProto.BOOL or bool(np.any(numpy_helper.to_array(mode)))


def _learns(node: onnx.NodeProto) -> bool:
    return any(a.name == "training_mode" and a.i for a in node.attribute) or sum(map(bool, node.output)) > 1
