"""Weights with an offset: what makes ONNX Runtime multiply matrices where its other kernel for convolutions is slower.

For weights whose zero point is 0 it has a kernel that gathers the input by pointers (from 64 input channels on). On a
core without dot products that takes more instructions than to copy the input together and to multiply matrices. It is
not taken where the zero point is any other, so that every weight and its zero point become one less.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edge_sdk_tools.quantize.links import Links

_LEAST_CHANNELS = 64  # fewer never take that kernel; see the module


def offset_weights(proto: onnx.ModelProto) -> None:
    """Lower the weights of every wide convolution and their zero points by one, in place; their values stay.

    Args:
        proto: quantized with symmetric signed weights, -127 to 127, in QDQ form.
    """
    graph = proto.graph
    links = Links(graph)
    lowered: set[str] = set()
    for node in graph.node:
        if node.op_type != "Conv":
            continue
        dequantize = links.maker(node.input[1], "DequantizeLinear")
        if dequantize is None or len(links.readers(node.input[1])) > 1:
            continue
        weights, zero_point = links.constant(dequantize.input[0]), links.constant(dequantize.input[2])
        if weights is None or zero_point is None or not _takes_other_kernel(node, weights):
            continue
        if weights.dtype == np.int8 and weights.min() > np.iinfo(np.int8).min and not zero_point.any():
            lowered.update((dequantize.input[0], dequantize.input[2]))
    for constant in graph.initializer:
        if constant.name in lowered:
            value = numpy_helper.to_array(constant) - np.int8(1)
            constant.CopyFrom(numpy_helper.from_array(value, constant.name))


def _takes_other_kernel(node: onnx.NodeProto, weights: np.ndarray) -> bool:
    groups = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "group"), 1)
    return bool(groups == 1 and weights.shape[1] >= _LEAST_CHANNELS and np.prod(weights.shape[2:]) > 1)
