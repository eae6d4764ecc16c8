"""Softmax along the last axis: where it runs along another, ONNX Runtime moves every value by itself, twice."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import helper


def softmax_along_last_axis(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Replace, in place, each float Softmax along another axis by one along the last, between two Transposes.

    The values are the same, but for the order in which a row is summed.

    Args:
        proto: of opset 13 or later, before which the axis meant something else.
        shapes: of its tensors, by name.
    """
    graph = proto.graph
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        shape = shapes.get(node.output[0]) if node.op_type == "Softmax" else None
        nodes.extend([node] if shape is None else _moved(node, len(shape)))
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _moved(node: onnx.NodeProto, rank: int) -> list[onnx.NodeProto]:
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1) % rank
    if axis == rank - 1:
        return [node]
    order = [*(other for other in range(rank) if other != axis), axis]
    back = [order.index(place) for place in range(rank)]
    name = node.name
    before, after = f"{name}/along", f"{name}/done"
    return [
        helper.make_node("Transpose", node.input, [before], f"{name}/to_last", perm=order),
        helper.make_node("Softmax", [before], [after], name, axis=rank - 1),
        helper.make_node("Transpose", [after], node.output, f"{name}/from_last", perm=back),
    ]
