"""Type and shape of each tensor of a graph, and functions put in the place of their calls.

Functions that call functions are limited: a chain that is deep enough overflows the stack of ONNX Runtime, and a tree
of them grows without end, from a few hundred bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec
import onnx
import onnx.inliner
from onnx import TensorProto

from edge_sdk.core.errors import first_line
from edge_sdk_tools.check.report import RefusedModelError

DEEPEST = 100
"""The largest depth of nested calls; exporters nest about ten, as deep as a model's modules."""
MOST_NODES = 100_000
"""The largest number of nodes after inlining; the largest detectors have some thousands."""

_Key: TypeAlias = tuple[str, str]


def inline_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Put the functions of a model in the place of their calls.

    Raises:
        RefusedModelError: they nest too deep, grow too large, call themselves, or cannot be put in place.
    """
    _check_size(proto)
    if not proto.functions:
        return proto
    defined = {(f.domain, f.name) for f in proto.functions}
    try:
        inlined = onnx.inliner.inline_local_functions(proto)
    except Exception as cause:  # onnx raises its own C++ types, which share no root
        raise RefusedModelError(
            f"functions cannot be put in the place of their calls: {first_line(cause)}", "export the model again"
        ) from cause
    left = next((n for n in nodes_of(inlined.graph.node) if (n.domain, n.op_type) in defined), None)
    if left is not None:
        raise RefusedModelError(
            f"function {left.op_type!r} was written for another opset than the model",
            "export the model again, or save it with onnx.inliner.inline_local_functions",
        )
    del inlined.functions[:]
    return inlined


def nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield every node, including those of graphs inside nodes."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_of(attribute.g.node)
            for graph in attribute.graphs:
                yield from nodes_of(graph.node)


def _check_size(proto: onnx.ModelProto) -> None:
    """Count depth and nodes of every function from the innermost out, without following a call twice."""
    calls: dict[_Key, list[_Key]] = {}
    for function in proto.functions:  # several may share a name: overloads
        calls.setdefault((function.domain, function.name), []).extend(_calls(function.node))
    sizes: dict[_Key, tuple[int, int]] = {}  # depth and nodes
    waiting = set(calls)
    while waiting:
        ready = [key for key in waiting if not any(call in waiting for call in calls[key])]
        if not ready:
            raise RefusedModelError(f"function {min(waiting)[1]!r} calls itself", "export the model again")
        for key in ready:
            sizes[key] = _size(calls[key], sizes)
        waiting.difference_update(ready)
    _size(_calls(proto.graph.node), sizes)


def _calls(nodes: Iterable[onnx.NodeProto]) -> list[_Key]:
    return [(node.domain, node.op_type) for node in nodes_of(nodes)]


def _size(calls: Iterable[_Key], sizes: dict[_Key, tuple[int, int]]) -> tuple[int, int]:
    called = [sizes.get(call, (0, 1)) for call in calls]
    depth, count = 1 + max((d for d, _ in called), default=0), sum(n for _, n in called)
    if depth > DEEPEST:
        raise RefusedModelError(
            f"functions call functions more than {DEEPEST} deep", "save the model with them put in place"
        )
    if count > MOST_NODES:
        raise RefusedModelError(
            f"has more than {MOST_NODES} nodes once its functions are put in place, expected a vision model",
            "export the model again, without functions that call each other",
        )
    return depth, count


_BITS = {
    **dict.fromkeys(("float", "int32", "uint32"), 32),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 64),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16),
    **dict.fromkeys(("int4", "uint4", "float4e2m1"), 4),
    **dict.fromkeys(("int2", "uint2"), 2),
    "complex128": 128,
}
_INVENTED = "unk__"  # names that onnx's inference makes up
_BYTE_BITS = 8  # bool, the 8-bit integers and floats; a string counts as one

FAR = 2**63 - 1
"""The largest number that is counted: what has more is far beyond every device, and no report could be written."""


def element_count(sides: Iterable[int]) -> int:
    """Elements of a shape whose sides are 0 or more; `FAR` at most."""
    count = 1
    for side in sorted(sides):  # a 0 comes first
        count = min(count * side, FAR)
        if count in (0, FAR):
            break
    return count


class Value(msgspec.Struct, frozen=True):
    """Type and shape of one tensor of a graph.

    Attributes:
        element: its element type in ONNX Runtime's spelling (`float`, `int64`); None when unknown, or no tensor.
        shape: its sides; a name or None for one that is not fixed; None as a whole when the rank is unknown.
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
    """`float` for TensorProto.FLOAT; None for one that this onnx does not know."""
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
