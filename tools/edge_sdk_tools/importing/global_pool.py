"""Means over a whole picture as GlobalAveragePool: the same numbers, in an operator that has an integer kernel.

torch.export takes `adaptive_avg_pool2d(x, 1)` apart into ReduceMean, around which a quantized model turns to float and
back. docs/adr/0011 has what that costs.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import helper, numpy_helper

_RANK = 4  # NCHW


def pool_means(proto: onnx.ModelProto) -> int:
    """Replace, in place, every ReduceMean over height and width that keeps its dimensions.

    Args:
        proto: its tensors' shapes must be known, as exporters write them.

    Returns:
        How many were replaced.
    """
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output)
        if value.type.tensor_type.HasField("shape")
    }
    found = [
        node
        for node in proto.graph.node
        if node.op_type == "ReduceMean" and ranks.get(node.input[0]) == _RANK and _means_pictures(node, constants)
    ]
    axes = {name for node in found for name in node.input[1:]}
    for node in found:
        pooled = helper.make_node("GlobalAveragePool", [node.input[0]], list(node.output), node.name)
        node.CopyFrom(pooled)
    _drop_axes(proto.graph, axes)
    return len(found)


def _means_pictures(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    axes = attributes.get("axes")  # an attribute until opset 17, an input since
    if len(node.input) > 1 and node.input[1] in constants:
        axes = numpy_helper.to_array(constants[node.input[1]]).tolist()
    return bool(attributes.get("keepdims", 1)) and axes is not None and {a % _RANK for a in axes} == {2, 3}


def _drop_axes(graph: onnx.GraphProto, names: set[str]) -> None:
    """Remove the constants among `names` that nothing reads any more."""
    read = set(_read(graph))
    for tensor in [t for t in graph.initializer if t.name in names - read]:
        graph.initializer.remove(tensor)


def _read(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            yield from _read(attribute.g)
