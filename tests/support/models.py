"""Small ONNX models made in the test: tiny ones, heads of detectors, odd graphs, models that misbehave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support import models as tiny

# Tiny ONNX models made in the test; small enough to write down, real enough to run.

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


def changed(seed: int, by: float = 0.3) -> onnx.ModelProto:
    """The tiny classifier with other weights, which differ by a normal deviate of the width `by`."""
    proto = classifier()
    random = np.random.default_rng(seed)
    for weight in proto.graph.initializer:
        values = numpy_helper.to_array(weight)
        noisy = (values + random.normal(0, by, values.shape)).astype(np.float32)
        weight.CopyFrom(numpy_helper.from_array(noisy, weight.name))
    return proto


def still(proto: onnx.ModelProto, at_least: float = 0.0) -> onnx.ModelProto:
    """The model whose outputs are the same for every image: weights are 0, and every bias is `at_least` or more."""
    for weight in proto.graph.initializer:
        values = numpy_helper.to_array(weight)
        if values.dtype == np.float32:
            constant = np.zeros_like(values) if values.ndim > 1 else np.maximum(values, at_least)
            weight.CopyFrom(numpy_helper.from_array(constant.astype(np.float32), weight.name))
    return proto


def head_detector(size: int = 64, classes: int = 2) -> onnx.ModelProto:
    """Finds bright 16-pixel cells: one raw YOLOv4 head of one anchor, from an average over each cell."""
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


# Heads of detectors, small, of their families' real structure: layers, and behind them the tail that decodes.

_CLASSES, _FEATURES = 2, 8
_GRIDS = (4, 2)


class Head:
    """A graph that grows node by node."""

    def __init__(self, levels: int = 2) -> None:
        self._random = np.random.default_rng(3)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.tail: list[str] = []
        self.levels = [self.activated(self.conv("images", _FEATURES, 3, kernel=2))]
        if levels > 1:
            self.levels.append(self.activated(self.conv(self.levels[0], _FEATURES, kernel=2)))

    def node(self, op_type: str, *inputs: str, decodes: bool = True, outputs: int = 1, **attributes: Any) -> list[str]:
        name = f"{op_type}_{len(self.nodes)}"
        names = [f"{name}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=name, **attributes))
        if decodes:
            self.tail.append(name)
        return names

    def decode(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self.node(op_type, *inputs, **attributes)[0]

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights[name] = np.array(value)
        return name

    def numbers(self, *shape: int) -> str:
        return self.constant(self._random.uniform(0.5, 2, shape).astype(np.float32))

    def conv(self, source: str, channels: int, from_channels: int = _FEATURES, kernel: int = 1) -> str:
        weight = self.constant(
            self._random.normal(0, 0.4, (channels, from_channels, kernel, kernel)).astype(np.float32)
        )
        return self.node("Conv", source, weight, decodes=False, strides=[kernel, kernel])[0]

    def activated(self, source: str) -> str:
        """SiLU, as YOLO has it: a Sigmoid that is no tail."""
        gate = self.node("Sigmoid", source, decodes=False)[0]
        return self.node("Mul", source, gate, decodes=False)[0]

    def reshape(self, source: str, *shape: int) -> str:
        return self.decode("Reshape", source, self.constant(list(shape)))

    def split(self, source: str, *sizes: int, axis: int = 1) -> list[str]:
        return self.node("Split", source, self.constant(list(sizes)), outputs=len(sizes), axis=axis)

    def model(self, *outputs: str) -> onnx.ModelProto:
        proto = tiny.model(self.nodes, [1, 3, 8, 8], {}, self.weights)
        proto = onnx.shape_inference.infer_shapes(proto)
        kinds = {value.name: value for value in proto.graph.value_info}
        proto.graph.output.extend(kinds[name] for name in outputs)
        onnx.checker.check_model(proto, full_check=True)
        return proto


def yolov5() -> tuple[Head, list[str]]:
    head, rows = Head(), []
    for source, grid in zip(head.levels, _GRIDS, strict=True):
        raw = head.reshape(head.conv(source, 3 * (5 + _CLASSES)), 1, 3, 5 + _CLASSES, grid, grid)
        values = head.decode("Sigmoid", head.decode("Transpose", raw, perm=[0, 1, 3, 4, 2]))
        xy, wh, rest = head.split(values, 2, 2, 1 + _CLASSES, axis=4)
        xy = head.decode("Mul", head.decode("Add", xy, head.numbers(1, 3, grid, grid, 2)), head.constant(np.float32(8)))
        wh = head.decode("Mul", head.decode("Pow", wh, head.constant(np.float32(2))), head.numbers(1, 3, 1, 1, 2))
        rows.append(head.reshape(head.decode("Concat", xy, wh, rest, axis=4), 1, -1, 5 + _CLASSES))
    return head, [head.decode("Concat", *rows, axis=1)]


def yolov7_for_suppression() -> tuple[Head, list[str]]:
    """Boxes and scores as a suppression in the graph wants them: corners by a product of 4 x 4 numbers."""
    head, [rows] = yolov5()
    boxes, objectness, classes = head.split(rows, 4, 1, _CLASSES, axis=2)
    corners = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]], np.float32)
    return head, [head.decode("MatMul", boxes, head.constant(corners)), head.decode("Mul", objectness, classes)]


def yolov8(mean: str = "Conv") -> tuple[Head, list[str]]:
    head, flat, bins = Head(), [], 4
    for source in head.levels:
        both = (head.conv(source, 4 * bins), head.conv(source, _CLASSES))
        flat.append(head.reshape(head.decode("Concat", *both, axis=1), 1, 4 * bins + _CLASSES, -1))
    sides, classes = head.split(head.decode("Concat", *flat, axis=2), 4 * bins, _CLASSES)
    sides = head.reshape(sides, 1, 4, bins, -1)
    steps = np.arange(bins, dtype=np.float32)
    if mean == "Conv":
        softmax = head.decode("Softmax", head.decode("Transpose", sides, perm=[0, 2, 1, 3]), axis=1)
        distances = head.decode("Conv", softmax, head.constant(steps.reshape(1, bins, 1, 1)))
    else:
        softmax = head.decode("Softmax", head.decode("Transpose", sides, perm=[0, 1, 3, 2]), axis=3)
        distances = head.decode("MatMul", softmax, head.constant(steps[:, None] if mean == "column" else steps))
    first, last = head.split(head.reshape(distances, 1, 4, -1), 2, 2)
    first, last = head.decode("Sub", head.numbers(1, 2, 1), first), head.decode("Add", head.numbers(1, 2, 1), last)
    boxes = head.decode("Mul", head.decode("Concat", first, last, axis=1), head.constant(np.float32(8)))
    return head, [head.decode("Concat", boxes, head.decode("Sigmoid", classes), axis=1)]


def yolox() -> tuple[Head, list[str]]:
    """Objectness comes from a convolution of one channel, a layer like the others."""
    head, flat = Head(), []
    for source in head.levels:
        scores = head.decode("Sigmoid", head.conv(head.activated(head.conv(source, _FEATURES)), _CLASSES))
        tower = head.activated(head.conv(source, _FEATURES))
        objectness = head.decode("Sigmoid", head.conv(tower, 1))
        rows = head.decode("Concat", head.conv(tower, 4), objectness, scores, axis=1)
        flat.append(head.reshape(rows, 1, 5 + _CLASSES, -1))
    return head, [head.decode("Transpose", head.decode("Concat", *flat, axis=2), perm=[0, 2, 1])]


def nanodet() -> tuple[Head, list[str]]:
    head, outputs, bins = Head(), [], 8
    for source in head.levels:
        tower = head.conv(head.activated(head.conv(source, _FEATURES)), _CLASSES + 4 * bins)
        scores, sides = head.split(tower, _CLASSES, 4 * bins)
        for part, size in ((head.decode("Sigmoid", scores), _CLASSES), (sides, 4 * bins)):
            outputs.append(head.decode("Transpose", head.reshape(part, size, -1), perm=[1, 0]))
    return head, outputs


def nanodet_plus() -> tuple[Head, list[str]]:
    head, flat, bins = Head(), [], 8
    for source in head.levels:
        tower = head.conv(head.activated(head.conv(source, _FEATURES)), _CLASSES + 4 * bins)
        scores, sides = head.split(tower, _CLASSES, 4 * bins)
        rows = head.decode("Concat", head.decode("Sigmoid", scores), sides, axis=1)
        flat.append(head.reshape(rows, 1, _CLASSES + 4 * bins, -1))
    return head, [head.decode("Transpose", head.decode("Concat", *flat, axis=2), perm=[0, 2, 1])]


def ssd(*, decoded: bool = False, logits: bool = False) -> tuple[Head, list[str]]:
    head = Head()
    parts: dict[int, list[str]] = {4: [], 1 + _CLASSES: []}
    for source in head.levels:
        for size, rows in parts.items():
            cells = head.decode("Transpose", head.conv(source, 2 * size), perm=[0, 2, 3, 1])
            rows.append(head.reshape(cells, 1, -1, size))
    offsets, scores = (head.decode("Concat", *rows, axis=1) for rows in parts.values())
    scores = scores if logits else head.decode("Softmax", scores, axis=2)
    if not decoded:
        return head, [offsets, scores]
    middle, size = head.split(offsets, 2, 2, axis=2)
    middle = head.decode("Add", head.decode("Mul", middle, head.numbers(1, 40, 2)), head.numbers(1, 40, 2))
    size = head.decode("Mul", head.decode("Exp", size), head.numbers(1, 40, 2))
    first = head.decode("Sub", middle, head.decode("Mul", size, head.constant(np.float32(0.5))))
    return head, [head.decode("Concat", first, head.decode("Add", first, size), axis=2), scores]


def centerface() -> tuple[Head, list[str]]:
    """The heatmap comes from a convolution of one channel."""
    head = Head(1)
    source = head.levels[0]
    return head, [head.decode("Sigmoid", head.conv(source, 1)), head.conv(source, 2), head.conv(source, 2)]


def one_class_map() -> tuple[Head, list[str]]:
    """A last layer of one channel, alone."""
    head = Head(1)
    return head, [head.decode("Sigmoid", head.conv(head.levels[0], 1))]


# Graphs that a quantizer trips over: outputs unused, shared or constant, weights shared, no convolution.

_IMAGE = [1, 3, 16, 16]
_SCORES = {"probabilities": [1, 3]}


def _values(*shape: int, scale: float = 0.4) -> np.ndarray:
    """The same for the same shape, whatever was made before."""
    return np.random.default_rng([8, *shape]).normal(0, scale, shape).astype(np.float32)


def _with(nodes: Sequence[onnx.NodeProto], **weights: np.ndarray) -> onnx.ModelProto:
    """A classifier from what makes `features` (1, C, H, W) of three channels."""
    end = [
        helper.make_node("GlobalAveragePool", ["features"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return tiny.model([*nodes, *end], _IMAGE, _SCORES, weights)


def _conv(inputs: list[str], output: str, name: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node("Conv", inputs, [output], name=name, **attributes)


def depthwise() -> onnx.ModelProto:
    nodes = [
        _conv(["images", "d"], "a", "depthwise", group=3, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        _conv(["b", "w"], "features", "pointwise"),
    ]
    return _with(nodes, d=_values(3, 1, 3, 3), w=_values(3, 3, 1, 1, scale=1.0))


def grouped() -> onnx.ModelProto:
    nodes = [
        _conv(["images", "w1"], "a", "first"),
        _conv(["a", "w2"], "b", "grouped", group=4),
        _conv(["b", "w3"], "features", "last"),
    ]
    return _with(nodes, w1=_values(8, 3, 1, 1), w2=_values(8, 2, 3, 3), w3=_values(3, 8, 1, 1, scale=1.0))


def transposed() -> onnx.ModelProto:
    nodes = [
        _conv(["images", "w1"], "a", "down", strides=[2, 2]),
        helper.make_node("ConvTranspose", ["a", "w2"], ["b"], name="up", strides=[2, 2]),
        _conv(["b", "w3"], "features", "last"),
    ]
    return _with(nodes, w1=_values(8, 3, 2, 2), w2=_values(8, 4, 2, 2), w3=_values(3, 4, 1, 1, scale=1.0))


def shared_weights() -> onnx.ModelProto:
    nodes = [
        _conv(["images", "w"], "a", "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        _conv(["b", "w"], "features", "second", pads=[1, 1, 1, 1]),
    ]
    return _with(nodes, w=_values(3, 3, 3, 3))


def shared_by_kinds() -> onnx.ModelProto:
    """One matrix for a convolution and, reshaped, for a MatMul; and a bias that is added to a tensor as well."""
    nodes = [
        _conv(["images", "w", "b"], "a", "first"),
        helper.make_node("Reshape", ["b", "shape"], ["b4"]),
        helper.make_node("Add", ["a", "b4"], ["c"]),
        _conv(["c", "w", "b"], "features", "second"),
    ]
    return _with(nodes, w=_values(3, 3, 1, 1, scale=1.0), b=_values(3), shape=np.array([1, 3, 1, 1]))


def computed_weights() -> onnx.ModelProto:
    """The second convolution's weights come from the picture."""
    nodes = [
        _conv(["images", "w1"], "a", "first"),
        helper.make_node("GlobalAveragePool", ["a"], ["g"]),
        helper.make_node("Reshape", ["g", "shape"], ["kernel"]),
        _conv(["images", "kernel"], "features", "computed"),
    ]
    return _with(nodes, w1=_values(9, 3, 1, 1, scale=1.0), shape=np.array([3, 3, 1, 1]))


def batch_normalization_first() -> onnx.ModelProto:
    """In front of the convolution, behind a branch: nothing can take it in."""
    nodes = [
        helper.make_node("BatchNormalization", ["images", "s", "o", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        _conv(["r", "w"], "a", "first"),
        helper.make_node("Add", ["a", "n"], ["sum"]),
        helper.make_node("BatchNormalization", ["sum", "s", "o", "m", "v"], ["features"]),
    ]
    weights = {
        "s": np.array([1.5, 0.5, -1.0], np.float32),
        "o": np.array([0.1, -0.2, 0.3], np.float32),
        "m": np.array([0.4, 0.5, 0.6], np.float32),
        "v": np.array([0.2, 0.3, 0.1], np.float32),
    }
    return _with(nodes, w=_values(3, 3, 1, 1, scale=1.0), **weights)


def gemm_only() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w1", "b1"], ["a"], name="wide"),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["logits"], name="narrow"),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    weights = {"w1": _values(768, 16, scale=0.05), "b1": _values(16), "w2": _values(16, 3)}
    return tiny.model(nodes, _IMAGE, _SCORES, weights)


def no_weights() -> onnx.ModelProto:
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return tiny.model(nodes, _IMAGE, _SCORES)


def dead_channel() -> onnx.ModelProto:
    """A filter of zeros, a tensor that is zero on every picture, and one that is a constant."""
    w1 = _values(8, 3, 1, 1)
    w1[2] = 0
    nodes = [
        _conv(["images", "w1"], "a", "first"),
        _conv(["a", "zeros"], "dead", "dead"),
        helper.make_node("Relu", ["dead"], ["nothing"]),
        _conv(["a", "zeros", "seven"], "seven_everywhere", "constant"),
        helper.make_node("Mul", ["nothing", "seven_everywhere"], ["still_nothing"]),
        helper.make_node("Add", ["a", "still_nothing"], ["b"]),
        _conv(["b", "w2"], "features", "last"),
    ]
    weights = {
        "w1": w1,
        "zeros": np.zeros((8, 8, 1, 1), np.float32),
        "seven": np.full(8, 7, np.float32),
        "w2": _values(3, 8, 1, 1, scale=1.0),
    }
    return _with(nodes, **weights)


def tiny_values() -> onnx.ModelProto:
    """An activation whose largest value is the smallest that a float can hold, or near it."""
    nodes = [
        _conv(["images", "w1"], "a", "first"),
        _conv(["a", "little"], "c", "little"),
        helper.make_node("Add", ["a", "c"], ["b"]),
        _conv(["b", "w2"], "features", "last"),
    ]
    weights = {
        "w1": _values(3, 3, 1, 1),
        "little": np.full((3, 3, 1, 1), 1e-41, np.float32),
        "w2": _values(3, 3, 1, 1, scale=1.0),
    }
    return _with(nodes, **weights)


def old(opset: int) -> onnx.ModelProto:
    """What exporters wrote at opsets 7 to 12: bounds, pads and scales as attributes at first, and as inputs later."""
    node = helper.make_node
    weights = {
        "w1": _values(8, 3, 3, 3),
        "s": np.abs(_values(8, scale=1.0)) + 0.5,
        "o": _values(8),
        "m": _values(8),
        "v": np.abs(_values(8, scale=1.0)) + 0.5,
        "w2": _values(4, 8, 1, 1, scale=1.0),
        "w3": _values(4, 3, scale=1.0),
        "b3": _values(3),
        "shape": np.array([1, 4]),
    }
    clip, pad, twice = ["n"], ["k"], ["d"]
    bounds: dict[str, object] = {"min": 0.0, "max": 6.0}
    pads: dict[str, object] = {"pads": [0, 0, 1, 1, 0, 0, 1, 1]}
    scales: dict[str, object] = {"mode": "nearest"}
    if opset >= 11:
        weights |= {"low": np.array(0, np.float32), "high": np.array(6, np.float32), "roi": np.zeros(0, np.float32)}
        weights["pads"] = np.array([0, 0, 1, 1, 0, 0, 1, 1])
        bounds, pads, clip, pad, twice = {}, {}, ["n", "low", "high"], ["k", "pads"], ["d", "roi"]
    if opset >= 9:
        weights["scales"] = np.array([1, 1, 2, 2], np.float32)
        twice.append("scales")
    else:
        scales["scales"] = [1.0, 1.0, 2.0, 2.0]
    nodes = [
        _conv(["images", "w1"], "a", "first"),
        node("BatchNormalization", ["a", "s", "o", "m", "v"], ["n"]),
        node("Clip", clip, ["k"], **bounds),
        node("Pad", pad, ["p"], **pads),
        node("Dropout", ["p"], ["d"], **({"ratio": 0.3} if opset < 12 else {})),
        node("Resize" if opset >= 11 else "Upsample", twice, ["u"], **scales),
        _conv(["u", "w2"], "c", "second"),
        node("GlobalAveragePool", ["c"], ["g"]),
        node("Reshape", ["g", "shape"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["logits"]),
        node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return tiny.model(nodes, _IMAGE, _SCORES, weights, opset=opset)


def unread_nodes() -> onnx.ModelProto:
    """Two nodes whose results nobody reads, one of them a convolution; and a second result of a Split."""
    proto = tiny.classifier()
    proto.graph.node.append(helper.make_node("Conv", ["r1", "w2", "b2"], ["unread"], name="unread"))
    proto.graph.node.append(helper.make_node("Sigmoid", ["c2"], ["unread_too"], name="unread_too"))
    proto.graph.node.append(helper.make_node("Split", ["r1"], ["half", "other"], name="halves", axis=1, num_outputs=2))
    proto.opset_import[0].version = 18
    return proto


def _two_outputs(make: Callable[[onnx.ModelProto], None]) -> onnx.ModelProto:
    proto = tiny.classifier()
    make(proto)
    return proto


def _add_output(proto: onnx.ModelProto, name: str, shape: list[int]) -> None:
    proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def output_read_inside() -> onnx.ModelProto:
    """The features in the middle are an output too, and read by the rest."""
    return _two_outputs(lambda proto: _add_output(proto, "r1", [1, 8, 8, 8]))


def weight_as_output() -> onnx.ModelProto:
    return _two_outputs(lambda proto: _add_output(proto, "b1", [8]))


def input_as_output() -> onnx.ModelProto:
    return _two_outputs(lambda proto: _add_output(proto, "images", _IMAGE))


def output_twice() -> onnx.ModelProto:
    return _two_outputs(lambda proto: _add_output(proto, "probabilities", [1, 3]))


def heads_from_one_tensor() -> onnx.ModelProto:
    """A detector with two heads that are one tensor, through an Identity each."""
    proto = tiny.head_detector()
    proto.graph.node[-1].output[0] = "raw"
    for name in ("head", "head2"):
        proto.graph.node.append(helper.make_node("Identity", ["raw"], [name]))
    _add_output(proto, "head2", [1, 7, 4, 4])
    return proto


# Tiny models that show what a further variant is good for, and what it cannot be made of.


def wide_classifier() -> onnx.ModelProto:
    """A classifier of three classes with 21 thousand weights, so that their type shows in the file."""
    random = np.random.default_rng(3)
    weights = {
        "w1": random.normal(0, 0.3, (32, 3, 3, 3)).astype(np.float32),
        "w2": random.normal(0, 0.1, (64, 32, 3, 3)).astype(np.float32),
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
    return tiny.model(nodes, _IMAGE, _SCORES, weights)


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
    """Always says class 1 by a margin above class 0; both grow with the number of pixels, the margin does not."""
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
    """A detector of two classes in the layout of YOLOv8 or v5, whose scores follow red and blue."""
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


# A classifier whose full INT8 loses its quality.


def uneven() -> onnx.ModelProto:
    """The tiny classifier with a detour: a channel of thousands shares a tensor with those of 1 that decide."""
    proto = tiny.classifier()
    random = np.random.default_rng(4)
    up = random.normal(0, 0.5, (9, 8, 1, 1)).astype(np.float32)
    up[:8, :, 0, 0] = np.eye(8)
    up[8] = 400.0
    down = np.zeros((8, 9, 1, 1), np.float32)
    down[:, :8, 0, 0] = np.eye(8)
    for name, value in (("up", up), ("down", down)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    at = next(i for i, node in enumerate(proto.graph.node) if node.name == "second")
    proto.graph.node[at].input[0] = "r3"
    proto.graph.node.insert(at, helper.make_node("Conv", ["r1", "up"], ["c3"], name="uneven"))
    proto.graph.node.insert(at + 1, helper.make_node("Conv", ["c3", "down"], ["r3"], name="even"))
    return proto


# Classifiers whose preprocessing is an operator of onnxruntime-extensions.

MIX = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.0, 0.2, 0.8]], np.float32)
"""How a camera mixes its colours."""


def unmixing(operator: str = "Inverse", classifier: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """A classifier of pictures whose colours were unmixed by the inverse of `MIX`; 16 pixels a side."""
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
