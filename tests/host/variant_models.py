"""Tiny models that show what a further variant is good for, and what it cannot be made of."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.device import tiny


def wide_classifier(size: int = 16, *, weight: float = 0.1) -> onnx.ModelProto:
    """A classifier of three classes with 21 thousand weights, so that their type shows in the file."""
    random = np.random.default_rng(3)
    weights = {
        "w1": random.normal(0, 0.3, (32, 3, 3, 3)).astype(np.float32),
        "w2": random.normal(0, weight, (64, 32, 3, 3)).astype(np.float32),
        "w3": random.normal(0, 0.3, (3, 64, 1, 1)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["images", "w1"], ["c1"], name="first", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Conv", ["r2", "w3"], ["c3"], name="third"),
        helper.make_node("GlobalAveragePool", ["c3"], ["g"]),
        helper.make_node("Flatten", ["g"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return tiny.model(nodes, [1, 3, size, size], {"probabilities": [1, 3]}, weights)


def mixer(size: int = 16, width: int = 64) -> onnx.ModelProto:
    """Nearly all products with weights, as a vision transformer: patches, two layers, an average, three classes."""
    random = np.random.default_rng(5)
    weights = {
        "patch": random.normal(0, 0.2, (width, 3, 4, 4)).astype(np.float32),
        "rows": np.array([1, width, -1], np.int64),
        "w1": random.normal(0, 0.15, (width, 4 * width)).astype(np.float32),
        "w2": random.normal(0, 0.1, (4 * width, width)).astype(np.float32),
        "w3": random.normal(0, 0.4, (width, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["images", "patch"], ["patches"], name="patches", strides=[4, 4]),
        helper.make_node("Reshape", ["patches", "rows"], ["flat"]),
        helper.make_node("Transpose", ["flat"], ["tokens"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["tokens", "w1"], ["h1"], name="up"),
        helper.make_node("Relu", ["h1"], ["r1"]),
        helper.make_node("MatMul", ["r1", "w2"], ["h2"], name="down"),
        helper.make_node("ReduceMean", ["h2"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "w3"], ["logits"], name="head"),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return tiny.model(nodes, [1, 3, size, size], {"probabilities": [1, 3]}, weights)


def adder(size: int = 16, margin: float = 12.0) -> onnx.ModelProto:
    """Always says class 1 by a margin above class 0; both grow with the number of pixels, the margin does not.

    In INT8 the margin vanishes where the picture is large: a step of 255 is then more than the margin.
    """
    weights = {
        "sides": np.array([2, 3], np.int64),
        "w": np.ones((3, 2), np.float32),
        "b": np.array([0, margin], np.float32),
    }
    nodes = [
        helper.make_node("ReduceSum", ["images", "sides"], ["sums"], keepdims=0),
        helper.make_node("Gemm", ["sums", "w", "b"], ["logits"], name="same"),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return tiny.model(nodes, [1, 3, size, size], {"probabilities": [1, 2]}, weights)


def summer(size: int = 16) -> onnx.ModelProto:
    """Three classes, one a colour, by sums over all pixels: what it computes grows with the size of the picture."""
    weights = {"sides": np.array([2, 3], np.int64), "w": (np.eye(3) * 0.05 - 0.02).astype(np.float32)}
    nodes = [
        helper.make_node("ReduceSum", ["images", "sides"], ["sums"], keepdims=0),
        helper.make_node("Gemm", ["sums", "w"], ["logits"], name="colours"),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return tiny.model(nodes, [1, 3, size, size], {"probabilities": [1, 3]}, weights)


def flat_detector(
    size: int = 64, *, fixed_rows: bool = False, offsets: bool = False, yolov5: bool = False
) -> onnx.ModelProto:
    """A detector of two classes in the layout of YOLOv8 or v5, whose scores follow red and blue.

    Args:
        size: of the input.
        fixed_rows: the number of cells of each head is written into its Reshape.
        offsets: the place of each cell is a constant of that many.
        yolov5: three anchors a cell, with objectness, cells before values.
    """
    values = 7 if yolov5 else 6
    anchors = 3 if yolov5 else 1
    weight = np.zeros((anchors * values, 3, 1, 1), np.float32)
    bias = np.zeros(anchors * values, np.float32)
    for anchor in range(anchors):
        first = anchor * values
        bias[first : first + 4] = 8
        if yolov5:
            bias[first + 4] = 4
        weight[first + values - 2, 0], weight[first + values - 1, 2] = 8, 8
        bias[first + values - 2 : first + values] = -4
    weights = {"w": weight, "b": bias}
    nodes, heads = [], []
    for stride in (8, 16, 32):
        cells = (size // stride) ** 2
        count = anchors * cells if fixed_rows else -1
        weights[f"shape{stride}"] = np.array([1, anchors, values, count // anchors if fixed_rows else -1], np.int64)
        weights[f"flat{stride}"] = np.array([1, -1, values], np.int64)
        pool = {"kernel_shape": [stride] * 2, "strides": [stride] * 2}
        nodes += [
            helper.make_node("AveragePool", ["images"], [f"cells{stride}"], **pool),
            helper.make_node("Conv", [f"cells{stride}", "w", "b"], [f"head{stride}"], name=f"conv{stride}"),
            helper.make_node("Reshape", [f"head{stride}", f"shape{stride}"], [f"split{stride}"]),
            helper.make_node("Transpose", [f"split{stride}"], [f"turned{stride}"], perm=[0, 1, 3, 2]),
            helper.make_node("Reshape", [f"turned{stride}", f"flat{stride}"], [f"rows{stride}"]),
        ]
        heads.append(f"rows{stride}")
    total = anchors * sum((size // stride) ** 2 for stride in (8, 16, 32))
    nodes.append(helper.make_node("Concat", heads, ["all"], axis=1))
    last = "all"
    if offsets:
        weights["offsets"] = np.zeros((1, total, values), np.float32)
        nodes.append(helper.make_node("Add", [last, "offsets"], ["placed"], name="place"))
        last = "placed"
    weights["parts"] = np.array([4, values - 4], np.int64)
    nodes += [
        helper.make_node("Split", [last, "parts"], ["boxes", "raw"], axis=2),
        helper.make_node("Sigmoid", ["raw"], ["scores"]),
        helper.make_node("Concat", ["boxes", "scores"], ["joined"], axis=2),
    ]
    if yolov5:
        nodes.append(helper.make_node("Identity", ["joined"], ["out"]))
        return tiny.model(nodes, [1, 3, size, size], {"out": [1, total, values]}, weights)
    nodes.append(helper.make_node("Transpose", ["joined"], ["out"], perm=[0, 2, 1]))
    return tiny.model(nodes, [1, 3, size, size], {"out": [1, values, total]}, weights)
