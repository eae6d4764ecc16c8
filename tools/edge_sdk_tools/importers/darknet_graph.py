"""What each kind of Darknet layer is in ONNX, and the graph while it grows.

The formulas are those of AlexeyAB's Darknet; its file is named beside each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx
from onnx import helper, numpy_helper

from edge_sdk_tools.importers.darknet_cfg import Convolution, Section, Weights

INPUT_NAME = "images"
# Per-channel QDQ needs 13 at least; 17 is run by every ONNX Runtime that a target may name.
OPSET = 17
_IR_VERSION = 8  # the one that belongs to opset 17
_LEAKY_SLOPE = 0.1  # activations.h: leaky_activate


class Value(NamedTuple):
    """A tensor float32 (1, channels, height, width)."""

    name: str
    channels: int
    height: int
    width: int


class Head(msgspec.Struct, frozen=True):
    """One raw output, the input of a [yolo]: for each anchor x, y, w, h, objectness and one score a class.

    `anchors` are (width, height) in input pixels.
    """

    value: Value
    anchors: tuple[tuple[float, float], ...]
    scale_xy: float
    classes: int


class Graph:
    """Collects what the layers add."""

    def __init__(self, value: Value) -> None:
        self.input = value
        self.layers: list[Value | None] = []
        self.weights: list[Convolution] = []
        self.heads: list[Head] = []
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def previous(self, section: Section) -> Value:
        """The tensor that `section` reads when it names none."""
        return self.input if section.index == 0 else self.layer(section, -1)

    def layer(self, section: Section, number: int) -> Value:
        """A layer's output; a negative number counts back from `section`."""
        index = section.index + number if number < 0 else number
        if not 0 <= index < section.index:
            raise section.error(f"reads layer {number}, expected one from 0 to {section.index - 1} or counted back")
        value = self.layers[index]
        if value is None:
            raise section.error(f"reads layer {index}, a [yolo], which has no output to go on with")
        return value

    def node(self, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Add one node with one output; returns its name, which is the node's too."""
        self._nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name: str, values: list[int] | list[float]) -> str:
        """Add a small constant, int64 or float32; returns its name."""
        dtype = np.int64 if all(isinstance(v, int) for v in values) else np.float32
        self._constants.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def to_model(self, name: str, weights: dict[str, Weights]) -> onnx.ModelProto:
        """The finished and checked ONNX model: opset 17, batch 1, static shapes, one output a head."""
        initializers = [
            numpy_helper.from_array(array, f"{layer}_{part}")
            for layer, numbers in weights.items()
            for part, array in zip(("weights", "bias"), numbers.folded(), strict=True)
        ]
        outputs = [_describe(head.value) for head in self.heads]
        constants = [*self._constants, *initializers]
        graph = helper.make_graph(self._nodes, name, [_describe(self.input)], outputs, constants)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, producer_name="edge-sdk", opset_imports=opsets, ir_version=_IR_VERSION)
        # Strict shape inference proves that the shapes computed here are those that ONNX computes.
        onnx.checker.check_model(model, full_check=True)
        return model


def _describe(value: Value) -> onnx.ValueInfoProto:
    shape = (1, value.channels, value.height, value.width)
    return helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape)


def add_layer(graph: Graph, section: Section) -> None:
    """Add one layer to the graph."""
    build = _KINDS.get(section.kind)
    if build is None:
        raise section.error(f"this kind of layer is not supported; supported: {', '.join(_KINDS)}")
    graph.layers.append(build(graph, section))


def _convolutional(graph: Graph, section: Section) -> Value:
    section.refuse(_NEUTRAL_CONVOLUTION)
    source = graph.previous(section)
    filters, groups = section.integer("filters", 1, 1), section.integer("groups", 1, 1)
    if source.channels % groups or filters % groups:
        expected = f"a divisor of {source.channels} channels and {filters} filters"
        raise section.error(f"groups is {groups}, expected {expected}")
    size = section.integer("size", 1, 1)
    padding = size // 2 if section.integer("pad", 0) else section.integer("padding", 0)
    stride_y, stride_x = _strides(section)
    height = _convolved(section, source.height, size, padding, stride_y)
    width = _convolved(section, source.width, size, padding, stride_x)
    name = f"layer_{section.index}"
    normalize = bool(section.integer("batch_normalize", 0))
    graph.weights.append(Convolution(name, filters, source.channels // groups, size, batch_normalize=normalize))
    convolved = graph.node(
        "Conv",
        [source.name, f"{name}_weights", f"{name}_bias"],
        f"{name}_conv",
        kernel_shape=[size, size],
        pads=[padding] * 4,
        strides=[stride_y, stride_x],
        group=groups,
    )
    # make_activation's default for [convolutional] is the logistic function (parser.c).
    return Value(_activate(graph, section, convolved, "logistic"), filters, height, width)


def _maxpool(graph: Graph, section: Section) -> Value:
    section.refuse(_NEUTRAL_MAXPOOL)
    source = graph.previous(section)
    stride_y, stride_x = _strides(section)
    size = section.integer("size", section.integer("stride", 1, 1), 1)
    # maxpool_layer.c: `padding` is the sum of both sides, and half of it, rounded down, lies before the picture.
    padding = section.integer("padding", size - 1)
    before = padding // 2
    if before >= size:
        raise section.error(f"padding is {padding}, expected less than twice the size {size}")
    height, after_y = _pooled(section, source.height, size, padding, stride_y)
    width, after_x = _pooled(section, source.width, size, padding, stride_x)
    pooled = graph.node(
        "MaxPool",
        [source.name],
        f"layer_{section.index}",
        kernel_shape=[size, size],
        pads=[before, before, after_y, after_x],
        strides=[stride_y, stride_x],
    )
    return Value(pooled, source.channels, height, width)


def _route(graph: Graph, section: Section) -> Value:
    numbers = section.integers("layers")
    if not numbers:
        raise section.error("layers is missing, expected numbers of layers")
    sources = [graph.layer(section, number) for number in numbers]
    first = sources[0]
    for number, source in zip(numbers, sources, strict=True):
        if source[2:] != first[2:]:
            raise section.error(f"layer {number} is {_size(source)}, expected {_size(first)} as the first one")
    parts = [_take_group(graph, section, source, place) for place, source in enumerate(sources)]
    channels = sum(part.channels for part in parts)
    if len(parts) == 1:
        return parts[0]
    joined = graph.node("Concat", [part.name for part in parts], f"layer_{section.index}", axis=1)
    return Value(joined, channels, first.height, first.width)


def _take_group(graph: Graph, section: Section, source: Value, place: int) -> Value:
    groups, group = section.integer("groups", 1, 1), section.integer("group_id", 0)
    if source.channels % groups or group >= groups:
        raise section.error(f"group_id {group} of {groups} groups, expected a share of {source.channels} channels")
    if groups == 1:
        return source
    share = source.channels // groups
    name = f"layer_{section.index}_group_{place}"
    bounds = {"starts": group * share, "ends": (group + 1) * share, "axes": 1}
    constants = [graph.constant(f"{name}_{key}", [value]) for key, value in bounds.items()]
    taken = graph.node("Slice", [source.name, *constants], name)
    return Value(taken, share, source.height, source.width)


def _shortcut(graph: Graph, section: Section) -> Value:
    section.refuse({"weights_type": "none"})
    total = graph.previous(section)
    numbers = section.integers("from")
    if not numbers:
        raise section.error("from is missing, expected numbers of layers")
    for place, number in enumerate(numbers):
        other = graph.layer(section, number)
        if other[1:] != total[1:]:
            expected = f"{total.channels}x{_size(total)}"
            raise section.error(f"layer {number} is {other.channels}x{_size(other)}, expected {expected}")
        total = total._replace(name=graph.node("Add", [total.name, other.name], f"layer_{section.index}_sum_{place}"))
    return total._replace(name=_activate(graph, section, total.name, "linear"))


def _upsample(graph: Graph, section: Section) -> Value:
    section.refuse({"scale": "1"})
    source = graph.previous(section)
    stride = section.integer("stride", 2, 1)
    scales = graph.constant(f"layer_{section.index}_scales", [1.0, 1.0, float(stride), float(stride)])
    grown = graph.node(
        "Resize",
        [source.name, "", scales],
        f"layer_{section.index}",
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return Value(grown, source.channels, source.height * stride, source.width * stride)


def _yolo(graph: Graph, section: Section) -> None:
    section.refuse({"new_coords": "0"})
    source = graph.previous(section)
    numbers, classes = section.numbers("anchors"), section.integer("classes", 20, 1)
    pairs = list(zip(numbers[0::2], numbers[1::2], strict=False))
    mask = section.integers("mask") or tuple(range(len(pairs)))
    if not mask or any(not 0 <= number < len(pairs) for number in mask):
        raise section.error(f"mask is {list(mask)}, expected numbers of the {len(pairs)} anchors, from 0")
    expected = len(mask) * (5 + classes)
    if source.channels != expected:
        what = f"{len(mask)} anchors x (5 + {classes} classes)"
        raise section.error(f"reads {source.channels} channels, expected {expected}: {what}")
    anchors = tuple(pairs[number] for number in mask)
    graph.heads.append(Head(source, anchors, section.number("scale_x_y", 1.0), classes))


def _activate(graph: Graph, section: Section, name: str, default: str) -> str:
    kind = section.options.get("activation", default)
    result = f"layer_{section.index}"
    if kind == "linear":
        return name
    if kind == "leaky":
        return graph.node("LeakyRelu", [name], result, alpha=_LEAKY_SLOPE)
    if kind == "mish":
        # ONNX's own Mish came with opset 18.
        softplus = graph.node("Softplus", [name], f"{result}_softplus")
        tanh = graph.node("Tanh", [softplus], f"{result}_tanh")
        return graph.node("Mul", [name, tanh], result)
    if kind in _PLAIN_ACTIVATIONS:
        return graph.node(_PLAIN_ACTIVATIONS[kind], [name], result)
    known = ", ".join(("linear", "leaky", "mish", *_PLAIN_ACTIVATIONS))
    raise section.error(f"activation {kind!r} is not supported; supported: {known}")


def _strides(section: Section) -> tuple[int, int]:
    stride = section.integer("stride", 1, 1)
    return section.integer("stride_y", stride, 1), section.integer("stride_x", stride, 1)


def _convolved(section: Section, side: int, size: int, padding: int, stride: int) -> int:
    """convolutional_layer.c: convolutional_out_height."""
    if side + 2 * padding < size:
        raise section.error(f"the kernel's size {size} is larger than its input of {side} with {padding} around it")
    return (side + 2 * padding - size) // stride + 1


def _pooled(section: Section, side: int, size: int, padding: int, stride: int) -> tuple[int, int]:
    """maxpool_layer.c: the side of the result, and how far the last window reaches beyond the picture."""
    if side + padding < size:
        raise section.error(f"the window's size {size} is larger than its input of {side} with {padding} around it")
    result = (side + padding - size) // stride + 1
    after = (result - 1) * stride + size - side - padding // 2
    return result, max(0, after)


def _size(value: Value) -> str:
    return f"{value.height}x{value.width}"


_PLAIN_ACTIVATIONS = {"relu": "Relu", "logistic": "Sigmoid"}
_NEUTRAL_CONVOLUTION = {
    **dict.fromkeys(("antialiasing", "flipped", "dontloadscales", "xnor", "binary", "bin_output", "coordconv"), "0"),
    **dict.fromkeys(("assisted_excitation", "deform", "sway", "rotate", "stretch", "stretch_sway"), "0"),
    "dilation": "1",
    "share_index": "-1000000000",
}
_NEUTRAL_MAXPOOL = {"maxpool_depth": "0", "antialiasing": "0", "maxpool_zero_nonmax": "0"}
_KINDS: dict[str, Callable[[Graph, Section], Value | None]] = {
    "convolutional": _convolutional,
    "conv": _convolutional,
    "maxpool": _maxpool,
    "max": _maxpool,
    "route": _route,
    "shortcut": _shortcut,
    "upsample": _upsample,
    "yolo": _yolo,
}
