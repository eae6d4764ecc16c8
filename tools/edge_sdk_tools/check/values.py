"""Value: element type and shape of one tensor of a graph, as far as they are known.

Owns the reading of what ONNX declares and infers, and sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec
import onnx
from onnx import TensorProto

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
    """One tensor.

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
    """What one input, output or inferred value says of itself."""
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        return Value(None, None)
    shape = tuple(_side(side) for side in tensor.shape.dim) if tensor.HasField("shape") else None
    return Value(element_name(tensor.elem_type), shape)


def graph_values(graph: onnx.GraphProto) -> dict[str, Value]:
    """Everything that a graph declares, its constants included."""
    values = {info.name: declared_value(info) for info in (*graph.value_info, *graph.output, *graph.input)}
    values.update({t.name: Value(element_name(t.data_type), tuple(t.dims)) for t in graph.initializer})
    return values


def _side(side: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if side.HasField("dim_value"):
        return int(side.dim_value)
    return None if side.dim_param.startswith(_INVENTED) else side.dim_param or None
