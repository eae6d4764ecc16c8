"""The entrance of a graph: where its picture lies in planes, after the Transpose that NHWC models begin with."""

from __future__ import annotations

import msgspec
import onnx
from onnx import helper

TO_PLANES = [0, 3, 1, 2]


class Entrance(msgspec.Struct, frozen=True, eq=False):
    """Where layers begin.

    Attributes:
        tensor: the name of what they read.
        transpose: what makes it of the input; None where it is the input itself.
    """

    tensor: str
    transpose: onnx.NodeProto | None = None


def entrance(graph: onnx.GraphProto) -> Entrance:
    """Find the entrance of a graph with one input."""
    name = graph.input[0].name
    readers = [node for node in graph.node if name in node.input]
    if len(readers) == 1 and readers[0].op_type == "Transpose":
        [node] = readers
        if [list(helper.get_attribute_value(a)) for a in node.attribute if a.name == "perm"] == [TO_PLANES]:
            return Entrance(node.output[0], node)
    return Entrance(name)
