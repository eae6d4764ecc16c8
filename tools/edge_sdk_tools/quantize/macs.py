"""Multiply-accumulates of convolutions: what of a model's work must run in integers."""

from __future__ import annotations

import numpy as np
import onnx


def convolution_macs(proto: onnx.ModelProto) -> dict[str, int]:
    """Multiply-accumulates of every Conv by node name, batch 1; shapes must have been inferred."""
    shapes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*proto.graph.value_info, *proto.graph.output)
    }
    weights = {w.name: list(w.dims) for w in proto.graph.initializer}
    return {
        node.name: int(np.prod(shapes[node.output[0]])) * int(np.prod(weights[node.input[1]][1:]))
        for node in proto.graph.node
        if node.op_type == "Conv" and node.output[0] in shapes and node.input[1] in weights
    }
