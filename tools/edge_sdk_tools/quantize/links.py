"""Links: who makes a tensor of a graph, who reads it, and what is constant.

Owns looking up, for the rewrites. It does not follow changes: make a new one after a rewrite.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper


class Links:
    """The links of one graph.

    Args:
        graph: left as it is.
    """

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
