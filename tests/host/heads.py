"""Heads of detectors, small, of their families' real structure: layers, and behind them the tail that decodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.device import tiny

_CLASSES, _FEATURES = 2, 8
_GRIDS = (4, 2)


class Head:
    """A graph that grows node by node.

    Args:
        levels: 1 or 2.

    Attributes:
        levels: what the layers of each level read.
        tail: names of the nodes that decode.
    """

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
