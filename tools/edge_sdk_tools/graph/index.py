"""Who makes a tensor of a graph, who reads it, what is constant; and the few ways in which rewrites change a graph.

The index follows no changes: make a new one after a rewrite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper


class GraphIndex:
    """The links of one graph, of its own nodes alone: graphs inside them are not looked at.

    Attributes:
        makers: the node that makes each tensor.
        constants: the initializers, by name.
        outputs: names of the graph's outputs.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.makers = {name: node for node in graph.node for name in node.output}
        self.constants = {weight.name: weight for weight in graph.initializer}
        self.outputs = {output.name for output in graph.output}
        self._readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._readers[name].append(node)

    def maker(self, name: str, kind: str) -> onnx.NodeProto | None:
        """The node that makes a tensor, where it is of this kind."""
        node = self.makers.get(name)
        return node if node is not None and node.op_type == kind else None

    def readers(self, name: str) -> list[onnx.NodeProto]:
        """All nodes that read a tensor, in graph order; a node that reads it twice is there twice."""
        return self._readers.get(name, [])

    def only_reader(self, name: str, *kinds: str) -> onnx.NodeProto | None:
        """The node that alone reads a tensor which is no output, where it is of one of these kinds."""
        readers = self.readers(name)
        return readers[0] if len(readers) == 1 and readers[0].op_type in kinds and name not in self.outputs else None

    def value(self, name: str) -> NDArray[Any] | None:
        """A tensor's value, where it is an initializer."""
        found = self.constants.get(name)
        return None if found is None else numpy_helper.to_array(found)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape, where it is an initializer."""
        found = self.constants.get(name)
        return None if found is None else tuple(found.dims)

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors are one, or constants of the same value and type."""
        a, b = self.value(one), self.value(other)
        return one == other or (a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b))

    def set_value(self, name: str, value: NDArray[Any]) -> None:
        """Give an initializer another value, in place."""
        self.constants[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of a node's attribute."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def copy_of(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model, to be rewritten in place."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    return result


def replace_all(field: Any, items: Iterable[Any]) -> None:
    """Put other messages into a repeated field of a protobuf; some of them may be its own."""
    kept = list(items)
    del field[:]
    field.extend(kept)


def keep_used_domains(proto: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Drop the operator sets that none of these nodes uses, in place."""
    used = {node.domain for node in nodes} | {"", "ai.onnx"}
    replace_all(proto.opset_import, [one for one in proto.opset_import if one.domain in used])
