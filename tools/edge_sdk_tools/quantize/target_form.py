"""The same quantized model, value for value, written as the kernels of one core like it best.

The search works with unsigned activations, which are fast on every workstation; the core's form is made once, of what
was chosen (docs/arm-cost.md has the counts). A Cortex-A76 multiplies signed activations without a detour: the same
integers less 128. A Cortex-A72 follows fewer pointers where weights have a zero point other than 0: the same integers
less 1 with a zero point of -1, in 16-bit sums that hold 2 * 127 * 128 and not 2 * 128 * 128.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from edge_sdk_tools.graph.index import GraphIndex, attribute, copy_of, replace_all

_CHANNELS, _FILTERS = 64, 16  # counted: with fewer channels nothing changes, eight filters cost a seventh more
_OFFSET = -1
_LOWEST = -127  # after the offset


def wide_weights(proto: onnx.ModelProto, float_nodes: Collection[str]) -> list[str]:
    """Names of the constant weights that wide convolutions of a float model read: those that may be offset."""
    shapes = {w.name: tuple(w.dims) for w in proto.graph.initializer}
    found = (n.input[1] for n in proto.graph.node if n.name not in float_nodes and _is_wide(n, shapes))
    return list(dict.fromkeys(found))


def offset_weights(proto: onnx.ModelProto) -> bool:
    """Offset the weights of wide convolutions, in place; values and scales stay what they are.

    Weights that another node reads too, or that have an integer below -126, are left alone. Returns whether any were
    offset. The graph must have symmetric signed weights, in QDQ form.
    """
    links = GraphIndex(proto.graph)
    found = [name for name in links.constants if _may_be_offset(name, links)]
    for name in found:
        for constant in (name, links.readers(name)[0].input[2]):
            links.set_value(constant, numpy_helper.to_array(links.constants[constant]) + np.int8(_OFFSET))
    return bool(found)


def _may_be_offset(name: str, links: GraphIndex) -> bool:
    """Whether only wide convolutions read these integers, and the zero point, and there is room."""
    dequantizers, integers = links.readers(name), links.value(name)
    if not dequantizers or any(n.op_type != "DequantizeLinear" or n.input[0] != name for n in dequantizers):
        return False
    if len(dequantizers[0].input) < 3:
        return False
    zero_point = dequantizers[0].input[2]
    zero = links.value(zero_point)
    if integers is None or zero is None or integers.dtype != np.int8 or zero.any() or not integers.size:
        return False
    if links.readers(zero_point) != dequantizers or int(integers.min()) + _OFFSET < _LOWEST:
        return False
    readers = [(node, value) for one in dequantizers for value in one.output for node in links.readers(value)]
    return bool(readers) and all(_is_wide(node, {value: integers.shape}) for node, value in readers)


def _is_wide(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether it is a convolution that gains: of many channels at once, and of more than one pixel."""
    if node.op_type != "Conv" or node.input[1] not in shapes:
        return False
    filters, channels, *kernel = shapes[node.input[1]]
    return (
        attribute(node, "group", 1) == 1 and channels >= _CHANNELS and filters >= _FILTERS and int(np.prod(kernel)) > 1
    )


_MIDDLE = 128


def sign_activations(proto: onnx.ModelProto) -> bool:
    """Make unsigned zero points and constants signed, in place: each integer is 128 less, each value the same."""
    graph = proto.graph
    integers = {n.input[2] for n in graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")}
    # A constant operand, as of a Mul, is quantized like an activation.
    integers |= {n.input[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    for constant in graph.initializer:
        if constant.name in integers and constant.data_type == onnx.TensorProto.UINT8:
            value = numpy_helper.to_array(constant).astype(np.int16) - _MIDDLE
            constant.CopyFrom(numpy_helper.from_array(value.astype(np.int8), constant.name))
    # Types that were inferred before are those of unsigned integers.
    unsigned = onnx.TensorProto.UINT8
    replace_all(graph.value_info, [v for v in graph.value_info if v.type.tensor_type.elem_type != unsigned])
    return True


_FORMS: dict[str, Callable[[onnx.ModelProto], bool]] = {"cortex-a72": offset_weights, "cortex-a76": sign_activations}
"""By core, in qemu's spelling. The others were not counted, or gain nothing; they take the model as it is."""


def signs_activations(cpu: str) -> bool:
    """Whether the form of a core has signed activations, so that its model cannot take a picture's levels."""
    return _FORMS.get(cpu) is sign_activations


def offsets_weights(cpu: str) -> bool:
    """Whether the form of a core offsets weights, for which a recipe must leave room."""
    return _FORMS.get(cpu) is offset_weights


def core_form(proto: onnx.ModelProto, cpu: str) -> onnx.ModelProto | None:
    """Return the form of a quantized model for one core; None where the model is best as it is."""
    if cpu not in _FORMS:
        return None
    copy = copy_of(proto)
    return copy if _FORMS[cpu](copy) else None
