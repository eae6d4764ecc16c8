"""Who makes a tensor of a graph, who reads it, what is constant, its type and shape; and how rewrites change a graph.

An index and values follow no changes: make new ones after a rewrite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper


class GraphIndex:
    """The links of one graph, of its own nodes alone: graphs inside them are not looked at.

    `makers` has the node that makes each tensor, `constants` the initializers, both by name.
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
        """Return the node that makes a tensor, where it is of this kind."""
        node = self.makers.get(name)
        return node if node is not None and node.op_type == kind else None

    def readers(self, name: str) -> list[onnx.NodeProto]:
        """Return all nodes that read a tensor, in graph order; a node that reads it twice is there twice."""
        return self._readers.get(name, [])

    def only_reader(self, name: str, *kinds: str) -> onnx.NodeProto | None:
        """Return the node that alone reads a tensor which is no output, where it is of one of these kinds."""
        readers = self.readers(name)
        return readers[0] if len(readers) == 1 and readers[0].op_type in kinds and name not in self.outputs else None

    def before(self, name: str) -> Iterator[onnx.NodeProto]:
        """Yield the nodes from which a tensor follows, the nearest first; one that makes several tensors may repeat."""
        waiting, seen = [name], {name}
        for current in waiting:
            node = self.makers.get(current)
            if node is not None:
                yield node
                fresh = [read for read in node.input if read and read not in seen]
                seen.update(fresh)
                waiting.extend(fresh)

    def value(self, name: str) -> NDArray[Any] | None:
        """Return a tensor's value, where it is an initializer."""
        found = self.constants.get(name)
        return None if found is None else numpy_helper.to_array(found)

    def same(self, one: str, other: str) -> bool:
        """Tell whether two tensors are one, or constants of the same value and type."""
        a, b = self.value(one), self.value(other)
        return one == other or (a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b))

    def set_value(self, name: str, value: NDArray[Any]) -> None:
        """Give an initializer another value, in place."""
        self.constants[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of a node's attribute."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def copy_of(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model, to be rewritten in place."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    return result


def replace_all(field: Any, items: Iterable[Any]) -> None:
    """Put other messages into a repeated field of a protobuf; some of them may be its own."""
    kept = list(items)
    del field[:]
    field.extend(kept)


def keep_used_domains(proto: onnx.ModelProto) -> None:
    """Drop the operator sets that no node uses, in place."""
    used = {node.domain for node in nodes_of(proto.graph.node)} | {"", "ai.onnx"}
    replace_all(proto.opset_import, [one for one in proto.opset_import if one.domain in used])


def nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield every node, including those of graphs inside nodes."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_of(attribute.g.node)
            for graph in attribute.graphs:
                yield from nodes_of(graph.node)


def initializers_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every initializer, including those of graphs inside nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from initializers_of(inner)


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return all initializers and the tensors of Constant nodes by name, including those of graphs inside nodes."""
    constants = {tensor.name: tensor for tensor in initializers_of(graph)}
    for node in nodes_of(graph.node):
        if node.op_type == "Constant" and isinstance(found := attribute(node, "value"), onnx.TensorProto):
            constants[node.output[0]] = found
    return constants


_BITS = {
    **dict.fromkeys(("float", "int32", "uint32"), 32),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 64),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16),
    **dict.fromkeys(("int4", "uint4", "float4e2m1"), 4),
    **dict.fromkeys(("int2", "uint2"), 2),
    "complex128": 128,
}
_RANK = 4  # of a picture: NCHW
_INVENTED = "unk__"  # names that onnx's inference makes up
_BYTE_BITS = 8  # bool, the 8-bit integers and floats; a string counts as one

FAR = 2**63 - 1
"""The largest number that is counted: what has more is far beyond every device, and no report could be written."""


def element_count(sides: Iterable[int]) -> int:
    """Return the number of elements of a shape whose sides are 0 or more; `FAR` at most."""
    count = 1
    for side in sorted(sides):  # a 0 comes first
        count = min(count * side, FAR)
        if count in (0, FAR):
            break
    return count


class Value(msgspec.Struct, frozen=True):
    """Type and shape of one tensor of a graph, the type in ONNX Runtime's spelling (`float`, `int64`).

    A side that is not fixed is a name or None; type and shape as a whole are None where they are unknown.
    """

    element: str | None
    shape: tuple[int | str | None, ...] | None

    @property
    def count(self) -> int | None:
        """How many elements it has, see `element_count`; None when a side is not fixed, or below 0."""
        if self.shape is None:
            return None
        sides = [side for side in self.shape if isinstance(side, int) and side >= 0]
        return element_count(sides) if len(sides) == len(self.shape) else None

    @property
    def bytes(self) -> int | None:
        """Bytes of its elements, `FAR` at most; None when unknown."""
        if self.count is None or self.element is None:
            return None
        return min(FAR, -(-self.count * _BITS.get(self.element, _BYTE_BITS) // 8))


Values: TypeAlias = Mapping[str, Value]
"""Tensors of a graph by name."""


def element_name(data_type: int) -> str | None:
    """Return `float` for TensorProto.FLOAT; None for a type that this onnx does not know."""
    known = data_type in TensorProto.DataType.values() and data_type != TensorProto.UNDEFINED
    return str(TensorProto.DataType.Name(data_type)).lower() if known else None


def declared_value(info: onnx.ValueInfoProto) -> Value:
    """Return the declared type and shape of an input, output or inferred value."""
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        return Value(None, None)
    shape = tuple(_side(side) for side in tensor.shape.dim) if tensor.HasField("shape") else None
    return Value(element_name(tensor.elem_type), shape)


def graph_values(graph: onnx.GraphProto) -> dict[str, Value]:
    """Return the declared values of a graph, including its constants."""
    values = {info.name: declared_value(info) for info in (*graph.value_info, *graph.output, *graph.input)}
    values.update({t.name: Value(element_name(t.data_type), tuple(t.dims)) for t in graph.initializer})
    return values


def _side(side: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if side.HasField("dim_value"):
        return int(side.dim_value)
    return None if side.dim_param.startswith(_INVENTED) else side.dim_param or None


def pool_means(proto: onnx.ModelProto) -> int:
    """Replace, in place, every ReduceMean over height and width that keeps its dimensions; returns how many.

    The shapes of the tensors must be known, as exporters write them; axes that are an input must be an initializer.
    GlobalAveragePool has an integer kernel: torch.export takes `adaptive_avg_pool2d(x, 1)` apart into ReduceMean,
    around which a quantized model turns to float and back (docs/adr/0010).
    """
    links, values = GraphIndex(proto.graph), graph_values(proto.graph)
    four = {name for name, value in values.items() if value.shape is not None and len(value.shape) == _RANK}
    means = [node for node in proto.graph.node if node.op_type == "ReduceMean" and node.input[0] in four]
    found = [node for node in means if _means_pictures(node, links)]
    axes = {name for node in found for name in node.input[1:]}
    for node in found:
        node.CopyFrom(helper.make_node("GlobalAveragePool", node.input[:1], node.output, node.name))
    axes.difference_update(name for node in nodes_of(proto.graph.node) for name in node.input)
    for tensor in [tensor for tensor in proto.graph.initializer if tensor.name in axes]:
        proto.graph.initializer.remove(tensor)
    return len(found)


def _means_pictures(node: onnx.NodeProto, links: GraphIndex) -> bool:
    axes = attribute(node, "axes")  # an attribute until opset 17, an input since
    if len(node.input) > 1 and (given := links.value(node.input[1])) is not None:
        axes = given.tolist()
    return bool(attribute(node, "keepdims", 1)) and axes is not None and {a % _RANK for a in axes} == {2, 3}
