"""Bytes of weights by the type of the operator that uses them, in a float model and in its QDQ form."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx
from onnx import helper

from edge_sdk_tools.ledger.ledger import OperatorSize

_DEQUANTIZE = "DequantizeLinear"
_PASSING = (_DEQUANTIZE, "QuantizeLinear", "Cast", "Identity", "Transpose", "Reshape")
"""What stands between a weight and the operator that computes with it."""


def size_by_operator(proto: onnx.ModelProto) -> dict[str, int]:
    """Bytes of constants by the type of operator that they feed, the largest first.

    A quantized weight counts for the operator behind its DequantizeLinear, with its scales and zero points; those of
    activations count for QuantizeLinear. What several operators share counts once, for the first of them.

    Args:
        proto: weights inside; graphs in control flow count too.
    """
    nodes = [node for graph in _graphs(proto.graph) for node in graph.node]
    uses: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            uses.setdefault(name, []).append(node)
    constants = dict(_constants(proto.graph))
    fixed = set(constants)
    for node in nodes:
        if _only_passes(node, fixed):
            fixed.update(node.output)
    totals: dict[str, int] = {}
    for name, size in constants.items():
        operator = _operator_of(name, uses, fixed)
        if operator:
            totals[operator] = totals.get(operator, 0) + size
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def operator_sizes(fp32: onnx.ModelProto | None, int8: onnx.ModelProto | None) -> tuple[OperatorSize, ...]:
    """Both models side by side, the largest in FP32 first; None for a model that is not there."""
    before = size_by_operator(fp32) if fp32 else None
    after = size_by_operator(int8) if int8 else None
    names = dict.fromkeys((*(before or ()), *(after or ())))
    return tuple(
        OperatorSize(
            name,
            None if before is None else before.get(name, 0),
            None if after is None else after.get(name, 0),
        )
        for name in names
    )


def _operator_of(name: str, uses: dict[str, list[onnx.NodeProto]], fixed: set[str]) -> str | None:
    """The type of operator that computes with a constant; None for one that nobody reads."""
    while name in uses:
        node = uses[name][0]
        if not _only_passes(node, fixed):
            return "QuantizeLinear" if node.op_type == _DEQUANTIZE else str(node.op_type)
        name = node.output[0]
    return None


def _only_passes(node: onnx.NodeProto, fixed: set[str]) -> bool:
    """Whether a node makes one constant of another."""
    return node.op_type in _PASSING and node.input[0] in fixed


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Names and bytes."""
    for inner in _graphs(graph):
        for weight in inner.initializer:
            yield weight.name, _bytes_of(weight)
        for node in inner.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.HasField("t"):
                    yield node.output[0], _bytes_of(attribute.t)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.initializer:
                    yield from _graphs(inner)


def _bytes_of(tensor: onnx.TensorProto) -> int:
    """Of its elements, however they are stored."""
    item_bytes = int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    return item_bytes * math.prod(int(side) for side in tensor.dims)
