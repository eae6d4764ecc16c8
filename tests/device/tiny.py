"""Tiny ONNX models made in the test; small enough to write down, real enough to run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 9


def model(
    nodes: Sequence[onnx.NodeProto],
    input_shape: Sequence[int | str],
    outputs: dict[str, Sequence[int | str]],
    weights: dict[str, np.ndarray] | None = None,
    *,
    opset: int = OPSET,
    input_type: int = TensorProto.FLOAT,
    output_type: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model with one input named `images`."""
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info("images", input_type, list(input_shape))],
        [helper.make_tensor_value_info(name, output_type, list(shape)) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def classifier(classes: int = 3, size: int = 16, *, opset: int = OPSET, batch: int | str = 1) -> onnx.ModelProto:
    """Conv, ReLU, Conv, ReLU, global average, softmax: what it says depends on the picture's colours."""
    random = np.random.default_rng(7)
    weights = {
        "w1": random.normal(0, 0.4, (8, 3, 3, 3)).astype(np.float32),
        "b1": random.normal(0, 0.1, 8).astype(np.float32),
        "w2": random.normal(0, 0.6, (classes, 8, 3, 3)).astype(np.float32),
        "b2": np.zeros(classes, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["images", "w1", "b1"], ["c1"], name="first", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c2"], ["g"]),
        helper.make_node("Flatten", ["g"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return model(nodes, [batch, 3, size, size], {"probabilities": [batch, classes]}, weights, opset=opset)


def head_detector(size: int = 64, classes: int = 2) -> onnx.ModelProto:
    """Finds bright 16-pixel cells: one raw YOLOv4 head of one anchor, from an average over each cell.

    Objectness = (mean brightness - 0.5) * 20; class 0 wins on red pictures (RGB), class 1 on blue ones.
    """
    channels = 5 + classes
    weight = np.zeros((channels, 3, 1, 1), np.float32)
    bias = np.zeros(channels, np.float32)
    weight[4] = 20 / 3
    bias[4] = -10
    weight[5, 0], weight[6, 2] = 8, 8
    nodes = [
        helper.make_node("AveragePool", ["images"], ["cells"], kernel_shape=[16, 16], strides=[16, 16]),
        helper.make_node("Conv", ["cells", "w", "b"], ["head"], name="head_conv"),
    ]
    grid = size // 16
    return model(nodes, [1, 3, size, size], {"head": [1, channels, grid, grid]}, {"w": weight, "b": bias})


def segmenter(size: int = 32, stride: int = 4, *, argmax: bool = False) -> onnx.ModelProto:
    """Tells red (1) and blue (2) cells (RGB, 0-1) from all others (0): scores, or class ids with `argmax`."""
    weight = np.array([[0, 0, 0], [2, -1, -1], [-1, -1, 2]], np.float32).reshape(3, 3, 1, 1)
    weights = {"w": weight, "b": np.array([0.5, 0, 0], np.float32)}
    cells = size // stride
    nodes = [
        helper.make_node("AveragePool", ["images"], ["cells"], kernel_shape=[stride] * 2, strides=[stride] * 2),
        helper.make_node("Conv", ["cells", "w", "b"], ["scores"], name="scores_conv"),
    ]
    if not argmax:
        return model(nodes, [1, 3, size, size], {"scores": [1, 3, cells, cells]}, weights)
    nodes.append(helper.make_node("ArgMax", ["scores"], ["ids"], axis=1, keepdims=0))
    return model(nodes, [1, 3, size, size], {"ids": [1, cells, cells]}, weights, output_type=TensorProto.INT64)
