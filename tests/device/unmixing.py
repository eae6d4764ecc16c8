"""Classifiers whose preprocessing is an operator of onnxruntime-extensions."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.device import tiny

MIX = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.0, 0.2, 0.8]], np.float32)
"""How a camera mixes its colours."""


def unmixing(operator: str = "Inverse", classifier: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """A classifier of pictures whose colours were unmixed by the inverse of `MIX`; 16 pixels a side.

    Args:
        operator: that inverts.
        classifier: what sees the pictures, in its first node only; by default the tiny one.
    """
    model = classifier or tiny.classifier()
    before = [
        helper.make_node("ReduceMax", ["images"], ["brightest"], keepdims=0),
        helper.make_node("Mul", ["brightest", "zero"], ["nothing"]),
        helper.make_node("Add", ["mix", "nothing"], ["matrix"]),  # from the picture, so that nothing is folded away
        helper.make_node(operator, ["matrix"], ["inverse"], name="unmix", domain="ai.onnx.contrib"),
        helper.make_node("Reshape", ["images", "flat"], ["pixels"]),
        helper.make_node("MatMul", ["inverse", "pixels"], ["unmixed"], name="colours"),
        helper.make_node("Reshape", ["unmixed", "square"], ["clean"]),
    ]
    after = list(model.graph.node)
    after[0].input[0] = "clean"
    del model.graph.node[:]
    model.graph.node.extend([*before, *after])
    constants = {
        "zero": np.float32(0).reshape(()),
        "mix": MIX,
        "flat": np.array([3, -1], np.int64),
        "square": np.array([1, 3, 16, 16], np.int64),
    }
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    model.opset_import.append(helper.make_opsetid("ai.onnx.contrib", 1))
    return model
