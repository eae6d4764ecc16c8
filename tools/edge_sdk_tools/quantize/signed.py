"""Signed activations: the same integers less 128, which the dot products of a Cortex-A76 multiply without a detour."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

_MIDDLE = 128


def sign_activations(proto: onnx.ModelProto) -> bool:
    """Make unsigned zero points and constants signed ones, in place; scales stay what they are.

    Each integer is 128 less, each value the same.

    Args:
        proto: quantized with unsigned activations and signed weights, in QDQ form.

    Returns:
        True: there always are some.
    """
    graph = proto.graph
    integers = {n.input[2] for n in graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")}
    # A constant operand, as of a Mul, is quantized like an activation.
    integers |= {n.input[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    for constant in graph.initializer:
        if constant.name in integers and constant.data_type == onnx.TensorProto.UINT8:
            value = numpy_helper.to_array(constant).astype(np.int16) - _MIDDLE
            constant.CopyFrom(numpy_helper.from_array(value.astype(np.int8), constant.name))
    # Types that were inferred before are those of unsigned integers.
    kept = [value for value in graph.value_info if value.type.tensor_type.elem_type != onnx.TensorProto.UINT8]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    return True
