"""Who makes a tensor of a graph, who reads it, and what is constant; it follows no changes of the graph."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

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


class Links:
    """The links of one graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._makers = {name: node for node in graph.node for name in node.output}
        self._readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._readers[name].append(node)
        self._constants = {w.name: w for w in graph.initializer}
        self._outputs = {output.name for output in graph.output}

    def maker(self, name: str, kind: str) -> onnx.NodeProto | None:
        """The node of that kind that makes a tensor."""
        node = self._makers.get(name)
        return node if node is not None and node.op_type == kind else None

    def only_reader(self, name: str, kind: str) -> onnx.NodeProto | None:
        """The node of that kind that alone reads a tensor which is no output."""
        readers = self._readers[name]
        return readers[0] if len(readers) == 1 and readers[0].op_type == kind and name not in self._outputs else None

    def readers(self, name: str) -> list[onnx.NodeProto]:
        """All nodes that read a tensor, in graph order."""
        return self._readers.get(name, [])

    def constant(self, name: str) -> NDArray[np.generic] | None:
        """A tensor's value, where it is an initializer."""
        found = self._constants.get(name)
        return None if found is None else numpy_helper.to_array(found)

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors are one, or constants of the same value and type."""
        a, b = self.constant(one), self.constant(other)
        return one == other or (a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b))
