"""Small ONNX models made in the test: tiny ones, heads of detectors, odd graphs, models that misbehave."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

# Tiny ONNX models made in the test; small enough to write down, real enough to run.

OPSET = 17
IR_VERSION = 9


def model(
    nodes: Sequence[onnx.NodeProto], input_shape: Sequence[int | str], outputs: dict[str, Sequence[int | str]],
    weights: dict[str, np.ndarray] | None = None, *, opset: int = OPSET, input_type: int = TensorProto.FLOAT,
    output_type: int = TensorProto.FLOAT,
) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info("images", input_type, list(input_shape))],
        [helper.make_tensor_value_info(name, output_type, list(shape)) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def parsed(
    text: str, outputs: dict[str, Sequence[int | str]], weights: dict[str, np.ndarray] | None = None, *,
    shape: Sequence[int | str] = (1, 3, 16, 16), opset: int = OPSET,
) -> onnx.ModelProto:  # fmt: skip
    """A model of nodes in ONNX's text form, each named like its first output, with one input named `images`."""
    nodes = onnx.parser.parse_graph(f"nodes (float images) => (float y) {{ {text} }}").node
    for node in nodes:
        node.name = node.output[0]
    proto = model(nodes, shape, outputs, weights, opset=opset)
    proto.opset_import.extend(helper.make_opsetid(name, 1) for name in sorted({node.domain for node in nodes} - {""}))
    return proto


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


class Head:
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
        return self.node("Mul", source, self.node("Sigmoid", source, decodes=False)[0], decodes=False)[0]

    def reshape(self, source: str, *shape: int) -> str:
        return self.decode("Reshape", source, self.constant(list(shape)))

    def split(self, source: str, *sizes: int, axis: int = 1) -> list[str]:
        return self.node("Split", source, self.constant(list(sizes)), outputs=len(sizes), axis=axis)

    def model(self, *outputs: str) -> onnx.ModelProto:
        proto = model(self.nodes, [1, 3, 8, 8], {}, self.weights)
        proto = onnx.shape_inference.infer_shapes(proto)
        kinds = {value.name: value for value in proto.graph.value_info}
        proto.graph.output.extend(kinds[name] for name in outputs)
        onnx.checker.check_model(proto, full_check=True)
        return proto


def yolov5() -> tuple[Head, list[str]]:
    head, rows = Head(), []
    for source, grid in zip(head.levels, (4, 2), strict=True):
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
    head = Head(1)
    source = head.levels[0]
    return head, [head.decode("Sigmoid", head.conv(source, 1)), head.conv(source, 2), head.conv(source, 2)]


def one_class_map() -> tuple[Head, list[str]]:
    head = Head(1)
    return head, [head.decode("Sigmoid", head.conv(head.levels[0], 1))]


# Graphs that a quantizer trips over: outputs unused, shared or constant, weights shared, no convolution.

_IMAGE = [1, 3, 16, 16]
_SCORES = {"probabilities": [1, 3]}
_POOLED = "pooled = GlobalAveragePool(features) logits = Flatten(pooled) probabilities = Softmax<axis=1>(logits)"


def _values(*shape: int, scale: float = 0.4) -> np.ndarray:
    """The same for the same shape, whatever was made before."""
    return np.random.default_rng([8, *shape]).normal(0, scale, shape).astype(np.float32)


def _with(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """A classifier from what makes `features` (1, C, H, W) of three channels."""
    return parsed(f"{text} {_POOLED}", _SCORES, weights)


def _shared_by_kinds() -> onnx.ModelProto:
    """One matrix for a convolution and, reshaped, for a MatMul; and a bias that is added to a tensor as well."""
    text = "a = Conv(images, w, b) b4 = Reshape(b, shape) c = Add(a, b4) features = Conv(c, w, b)"
    return _with(text, w=_values(3, 3, 1, 1, scale=1.0), b=_values(3), shape=np.array([1, 3, 1, 1]))


def _batch_normalization_first() -> onnx.ModelProto:
    """In front of the convolution, behind a branch: nothing can take it in."""
    text = """n = BatchNormalization(images, s, o, m, v) r = Relu(n) a = Conv(r, w) sum = Add(a, n)
        features = BatchNormalization(sum, s, o, m, v)"""
    rows = {"s": (1.5, 0.5, -1.0), "o": (0.1, -0.2, 0.3), "m": (0.4, 0.5, 0.6), "v": (0.2, 0.3, 0.1)}
    weights = {name: np.array(row, np.float32) for name, row in rows.items()}
    return _with(text, w=_values(3, 3, 1, 1, scale=1.0), **weights)


def _gemm_only() -> onnx.ModelProto:
    text = "flat = Flatten(images) a = Gemm(flat, w1, b1) r = Relu(a) logits = MatMul(r, w2)"
    weights = {"w1": _values(768, 16, scale=0.05), "b1": _values(16), "w2": _values(16, 3)}
    return parsed(f"{text} probabilities = Softmax<axis=1>(logits)", _SCORES, weights)


def no_weights() -> onnx.ModelProto:
    return parsed(_POOLED.replace("features", "images"), _SCORES)


def _dead_channel() -> onnx.ModelProto:
    """A filter of zeros, a tensor that is zero on every picture, and one that is a constant."""
    text = """a = Conv(images, w1) dead = Conv(a, zeros) nothing = Relu(dead)
        seven_everywhere = Conv(a, zeros, seven) still_nothing = Mul(nothing, seven_everywhere)
        b = Add(a, still_nothing) features = Conv(b, w2)"""
    weights = {
        "w1": _values(8, 3, 1, 1),
        "zeros": np.zeros((8, 8, 1, 1), np.float32),
        "seven": np.full(8, 7, np.float32),
    }
    weights["w1"][2] = 0
    return _with(text, **weights, w2=_values(3, 8, 1, 1, scale=1.0))


def _tiny_values() -> onnx.ModelProto:
    """An activation whose largest value is the smallest that a float can hold, or near it."""
    text = "a = Conv(images, w1) c = Conv(a, little) b = Add(a, c) features = Conv(b, w2)"
    little = np.full((3, 3, 1, 1), 1e-41, np.float32)
    return _with(text, w1=_values(3, 3, 1, 1), little=little, w2=_values(3, 3, 1, 1, scale=1.0))


def _opset_7() -> onnx.ModelProto:
    """What exporters wrote then: bounds, pads and scales are attributes."""
    weights = {
        "w1": _values(8, 3, 3, 3), "s": np.abs(_values(8, scale=1.0)) + 0.5, "o": _values(8), "m": _values(8),
        "v": np.abs(_values(8, scale=1.0)) + 0.5, "w2": _values(4, 8, 1, 1, scale=1.0), "w3": _values(4, 3, scale=1.0),
        "b3": _values(3), "shape": np.array([1, 4]),
    }  # fmt: skip
    text = """a = Conv(images, w1) n = BatchNormalization(a, s, o, m, v) k = Clip<min=0.0, max=6.0>(n)
        p = Pad<pads=[0,0,1,1,0,0,1,1]>(k) d = Dropout<ratio=0.3>(p)
        u = Upsample<mode="nearest", scales=[1.0,1.0,2.0,2.0]>(d) c = Conv(u, w2) g = GlobalAveragePool(c)
        f = Reshape(g, shape) logits = Gemm(f, w3, b3) probabilities = Softmax<axis=1>(logits)"""
    return parsed(text, _SCORES, weights, opset=7)


def _unread_nodes() -> onnx.ModelProto:
    """Two nodes whose results nobody reads, one of them a convolution; and a second result of a Split."""
    proto = classifier()
    proto.graph.node.append(helper.make_node("Conv", ["r1", "w2", "b2"], ["unread"], name="unread"))
    proto.graph.node.append(helper.make_node("Sigmoid", ["c2"], ["unread_too"], name="unread_too"))
    proto.graph.node.append(helper.make_node("Split", ["r1"], ["half", "other"], name="halves", axis=1, num_outputs=2))
    proto.opset_import[0].version = 18
    return proto


def _and_output(proto: onnx.ModelProto, name: str, shape: list[int]) -> onnx.ModelProto:
    proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    return proto


def input_as_output() -> onnx.ModelProto:
    return _and_output(classifier(), "images", _IMAGE)


def output_twice() -> onnx.ModelProto:
    return _and_output(classifier(), "probabilities", [1, 3])


def heads_from_one_tensor() -> onnx.ModelProto:
    """A detector with two heads that are one tensor, through an Identity each."""
    proto = head_detector()
    proto.graph.node[-1].output[0] = "raw"
    for name in ("head", "head2"):
        proto.graph.node.append(helper.make_node("Identity", ["raw"], [name]))
    return _and_output(proto, "head2", [1, 7, 4, 4])


ODD_GRAPHS: dict[str, Callable[[], onnx.ModelProto]] = {
    "depthwise": lambda: _with(
        "a = Conv<group=3, pads=[1,1,1,1]>(images, d) b = Relu(a) features = Conv(b, w)",
        d=_values(3, 1, 3, 3),
        w=_values(3, 3, 1, 1, scale=1.0),
    ),
    "grouped": lambda: _with(
        "a = Conv(images, w1) b = Conv<group=4>(a, w2) features = Conv(b, w3)",
        w1=_values(8, 3, 1, 1),
        w2=_values(8, 2, 3, 3),
        w3=_values(3, 8, 1, 1, scale=1.0),
    ),
    "transposed": lambda: _with(
        "a = Conv<strides=[2,2]>(images, w1) b = ConvTranspose<strides=[2,2]>(a, w2) features = Conv(b, w3)",
        w1=_values(8, 3, 2, 2),
        w2=_values(8, 4, 2, 2),
        w3=_values(3, 4, 1, 1, scale=1.0),
    ),
    "shared weights": lambda: _with(
        "a = Conv<pads=[1,1,1,1]>(images, w) b = Relu(a) features = Conv<pads=[1,1,1,1]>(b, w)", w=_values(3, 3, 3, 3)
    ),
    "shared by kinds": _shared_by_kinds,
    "weights from the picture": lambda: _with(
        "a = Conv(images, w1) g = GlobalAveragePool(a) k = Reshape(g, shape) features = Conv(images, k)",
        w1=_values(9, 3, 1, 1, scale=1.0),
        shape=np.array([3, 3, 1, 1]),
    ),
    "batch normalization first": _batch_normalization_first,
    "dead channel": _dead_channel,
    "tiny values": _tiny_values,
    "unread nodes": _unread_nodes,
    "output read inside": lambda: _and_output(classifier(), "r1", [1, 8, 8, 8]),
    "weight as output": lambda: _and_output(classifier(), "b1", [8]),
    "opset 7": _opset_7,
    "gemm only": _gemm_only,
}
"""Classifiers whose INT8 must say what FP32 says."""


# Tiny models that show what a further variant is good for, and what it cannot be made of.


def wide_classifier() -> onnx.ModelProto:
    """A classifier of three classes with 21 thousand weights, so that their type shows in the file."""
    random = np.random.default_rng(3)
    weights = {
        "w1": random.normal(0, 0.3, (32, 3, 3, 3)).astype(np.float32),
        "w2": random.normal(0, 0.1, (64, 32, 3, 3)).astype(np.float32),
        "w3": random.normal(0, 0.3, (3, 64, 1, 1)).astype(np.float32),
    }
    text = """c1 = Conv<pads=[1,1,1,1], strides=[2,2]>(images, w1) r1 = Relu(c1)
        c2 = Conv<pads=[1,1,1,1]>(r1, w2) r2 = Relu(c2) features = Conv(r2, w3)"""
    return _with(text, **weights)


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
    text = """patches = Conv<strides=[4,4]>(images, patch) flat = Reshape(patches, rows)
        tokens = Transpose<perm=[0,2,1]>(flat) up = MatMul(tokens, w1) r1 = Relu(up) down = MatMul(r1, w2)
        mean = ReduceMean<axes=[1], keepdims=0>(down) logits = MatMul(mean, w3)
        probabilities = Softmax<axis=1>(logits)"""
    return parsed(text, _SCORES, weights, shape=[1, 3, size, size])


_SUMS = "sums = ReduceSum<keepdims=0>(images, sides)"


def adder(size: int = 16, margin: float = 12.0) -> onnx.ModelProto:
    """Always says class 1 by a margin above class 0; both grow with the number of pixels, the margin does not."""
    weights = {
        "sides": np.array([2, 3], np.int64),
        "w": np.ones((3, 2), np.float32),
        "b": np.array([0, margin], np.float32),
    }
    text = f"{_SUMS} logits = Gemm(sums, w, b) probabilities = Softmax<axis=1>(logits)"
    return parsed(text, {"probabilities": [1, 2]}, weights, shape=[1, 3, size, size])


def summer(size: int = 16) -> onnx.ModelProto:
    """Three classes, one a colour, by sums over all pixels: what it computes grows with the size of the picture."""
    weights = {"sides": np.array([2, 3], np.int64), "w": (np.eye(3) * 0.05 - 0.02).astype(np.float32)}
    text = f"{_SUMS} logits = Gemm(sums, w) probabilities = Softmax<axis=1>(logits)"
    return parsed(text, _SCORES, weights, shape=[1, 3, size, size])


def flat_detector(
    size: int = 64, *, fixed_rows: bool = False, offsets: bool = False, yolov5: bool = False
) -> onnx.ModelProto:
    """A detector of two classes in the layout of YOLOv8 or v5, whose scores follow red and blue."""
    values, anchors = (7, 3) if yolov5 else (6, 1)
    weight = np.zeros((anchors, values, 3, 1, 1), np.float32)
    bias = np.zeros((anchors, values), np.float32)
    weight[:, -2, 0] = weight[:, -1, 2] = 8
    bias[:, :4], bias[:, 4:-2], bias[:, -2:] = 8, 4, -4
    weights = {"w": weight.reshape(-1, 3, 1, 1), "b": bias.reshape(-1), "parts": np.array([4, values - 4])}
    text, total = "", 0
    for stride in (8, 16, 32):
        cells = (size // stride) ** 2
        total += anchors * cells
        weights[f"shape{stride}"] = np.array([1, anchors, values, cells if fixed_rows else -1])
        weights[f"flat{stride}"] = np.array([1, -1, values])
        text += f"""cells{stride} = AveragePool<kernel_shape=[{stride},{stride}], strides=[{stride},{stride}]>(images)
            head{stride} = Conv(cells{stride}, w, b)
            split{stride} = Reshape(head{stride}, shape{stride})
            turned{stride} = Transpose<perm=[0,1,3,2]>(split{stride})
            rows{stride} = Reshape(turned{stride}, flat{stride}) """
    text += "all = Concat<axis=1>(rows8, rows16, rows32) "
    if offsets:
        weights["offsets"] = np.zeros((1, total, values), np.float32)
        text += "place = Add(all, offsets) "
    text += f"""boxes, raw = Split<axis=2>({"place" if offsets else "all"}, parts) scores = Sigmoid(raw)
        joined = Concat<axis=2>(boxes, scores) out = {"Identity" if yolov5 else "Transpose<perm=[0,2,1]>"}(joined)"""
    out = [1, total, values] if yolov5 else [1, values, total]
    return parsed(text, {"out": out}, weights, shape=[1, 3, size, size])


# A classifier whose full INT8 loses its quality.


def uneven() -> onnx.ModelProto:
    """The tiny classifier with a detour: a channel of thousands shares a tensor with those of 1 that decide."""
    proto = classifier()
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


def unmixing(operator: str = "Inverse", then: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """A classifier of pictures whose colours were unmixed by the inverse of `MIX`; 16 pixels a side."""
    after = then or classifier()
    # The matrix comes from the picture, so that nothing is folded away.
    text = f"""brightest = ReduceMax<keepdims=0>(images) nothing = Mul(brightest, zero) matrix = Add(mix, nothing)
        unmix = ai.onnx.contrib.{operator}(matrix) pixels = Reshape(images, flat) colours = MatMul(unmix, pixels)
        clean = Reshape(colours, square)"""
    weights = {
        "zero": np.float32(0).reshape(()),
        "mix": MIX,
        "flat": np.array([3, -1], np.int64),
        "square": np.array([1, 3, 16, 16], np.int64),
    }
    joined = parsed(text, {}, weights)
    after.graph.node[0].input[0] = "clean"
    joined.graph.node.extend(after.graph.node)
    joined.graph.initializer.extend(after.graph.initializer)
    joined.graph.output.extend(after.graph.output)
    return joined
