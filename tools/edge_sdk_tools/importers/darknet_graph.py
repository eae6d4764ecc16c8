"""Read a Darknet .cfg and .weights file, and say what each layer is in ONNX; every error names file, line and layer.

The formulas are those of AlexeyAB's Darknet; its file is named beside each. Of all layers that are converted only
convolutions have weights.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edge_sdk.core.errors import ModelError, raising
from edge_sdk.core.files import open_regular, read_regular

N = TypeVar("N", bound=float)
_INT_MAX = 2**31 - 1  # Darknet's own limit: C's int


class Section(msgspec.Struct, frozen=True):
    """One section of a .cfg, by the word in brackets, in lower case; `where` are its file and line.

    `index` is Darknet's count of layers, from 0; -1 for [net].
    """

    kind: str
    index: int
    where: str
    options: dict[str, str]

    def error(self, message: str) -> ModelError:
        """Return an error about this section."""
        place = f"layer {self.index} [{self.kind}]" if self.index >= 0 else f"[{self.kind}]"
        return ModelError(f"{self.where}: {place}: {message}")

    def integer(self, key: str, default: int | None, minimum: int = 0, maximum: int = _INT_MAX) -> int:
        """Return a whole number from `minimum` to `maximum`; a missing one is refused where `default` is None."""
        text = self.options.get(key, default)
        if text is None:
            raise self.error(f"{key} is missing")
        value = self._parse(int, key, text)
        if not minimum <= value <= maximum:
            raise self.error(f"{key} is {value}, expected {minimum} to {maximum}")
        return value

    def number(self, key: str, default: float) -> float:
        """Return the option `key` as a finite number, or `default` where it is missing."""
        return self._parse(float, key, self.options.get(key, default))

    def numbers(self, key: str, kind: type[N]) -> tuple[N, ...]:
        """Return an option that holds numbers separated by commas; empty where the key is missing."""
        # Darknet's own files end some lists with a comma.
        return tuple(self._parse(kind, key, part) for part in self.options.get(key, "").split(",") if part)

    def strides(self) -> tuple[int, int]:
        """Return how far a layer's window moves, down and across."""
        stride = self.integer("stride", 1, 1)
        return self.integer("stride_y", stride, 1), self.integer("stride_x", stride, 1)

    def refuse(self, neutral: dict[str, str]) -> None:
        """Refuse options with another value than the `neutral` one, which changes nothing: they are not converted."""
        for key, expected in neutral.items():
            if self.options.get(key, expected) != expected:
                raise self.error(f"{key}={self.options[key]} is not supported, expected {key}={expected}")

    def _parse(self, kind: type[N], key: str, text: str | float) -> N:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if math.isfinite(value):
                return value
        raise self.error(f"{key} is {text!r}, expected a {'whole ' if kind is int else ''}number")


def read_cfg(path: Path) -> tuple[Section, list[Section]]:
    """Read a .cfg file: the [net] section, and one section for each layer in order."""
    sections: list[Section] = []
    for number, raw in enumerate(_read_text(path).splitlines(), start=1):
        line = "".join(raw.split("#")[0].split(";")[0].split())
        if not line:
            continue
        where = f"{path}:{number}"
        if line.startswith("["):
            if not line.endswith("]") or len(line) < 3:
                raise ModelError(f"{where}: expected `[section]`, got {line[:60]!r}")
            sections.append(Section(line[1:-1].lower(), len(sections) - 1, where, {}))
            continue
        key, equals, value = line.partition("=")
        if not equals or not sections:
            raise ModelError(f"{where}: expected `[section]` or `key=value`, got {raw.strip()[:60]!r}")
        # Where a key is given twice, Darknet takes the first.
        sections[-1].options.setdefault(key, value)
    if not sections or sections[0].kind not in ("net", "network"):
        raise ModelError(f"{path}: does not begin with [net], expected a Darknet .cfg")
    if len(sections) == 1:
        raise ModelError(f"{path}: no layers after [net]")
    return sections[0], sections[1:]


def _read_text(path: Path) -> str:
    with raising(ModelError, f"{path}: cannot be read"):
        try:
            return read_regular(path).decode("utf-8")
        except FileNotFoundError:
            raise ModelError(f"{path}: no such file, expected a Darknet .cfg") from None
        except UnicodeDecodeError:
            raise ModelError(f"{path}: not text, expected a Darknet .cfg") from None


EPSILON = 1e-5  # added to the variance before the square root, as in AlexeyAB's fuse_conv_batchnorm and cuDNN


class Convolution(msgspec.Struct, frozen=True):
    """What one convolution, such as `layer_7`, reads of the .weights file; channels are the inputs of one group.

    With `batch_normalize` the file has scale, mean and variance between the bias and the kernel.
    """

    name: str
    filters: int
    channels: int
    size: int
    batch_normalize: bool

    @property
    def count(self) -> int:
        """The number of float32 values."""
        return self.filters * ((4 if self.batch_normalize else 1) + self.channels * self.size**2)


class Weights(msgspec.Struct, frozen=True, eq=False):
    """The weights of one convolution as the file has them: float32 (filters, channels, size, size) and (filters,).

    `normalisation` has scale, mean and variance of the batch normalisation, (filters,) each; empty where there is none.
    """

    kernel: NDArray[np.float32]
    bias: NDArray[np.float32]
    normalisation: tuple[NDArray[np.float32], ...]

    def folded(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Kernel and bias that do the batch normalisation too; a negative variance gives NaN."""
        if not self.normalisation:
            return self.kernel, self.bias
        scale, mean, variance = (vector.astype(np.float64) for vector in self.normalisation)
        with np.errstate(invalid="ignore", over="ignore"):
            factor = scale / np.sqrt(variance + EPSILON)
            kernel = self.kernel * factor[:, None, None, None]
            return kernel.astype(np.float32), (self.bias - mean * factor).astype(np.float32)


def read_weights(path: Path, wanted: Sequence[Convolution]) -> dict[str, Weights]:
    """Read the weights of all convolutions, by the names of their layers."""
    numbers = _read_numbers(path, sum(convolution.count for convolution in wanted))
    found: dict[str, Weights] = {}
    start = 0
    for one in wanted:
        part = numbers[start : start + one.count]
        start += one.count
        vectors = 4 if one.batch_normalize else 1
        bias, *normalisation = part[: vectors * one.filters].reshape(vectors, one.filters)
        kernel = part[vectors * one.filters :].reshape(one.filters, one.channels, one.size, one.size)
        found[one.name] = Weights(kernel, bias, tuple(normalisation))
        if not all(np.isfinite(array).all() for array in found[one.name].folded()):
            raise ModelError(f"{path}: {one.name}_weights is not finite; the file is damaged, download it again")
    return found


def _read_numbers(path: Path, count: int) -> NDArray[np.float32]:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            header_bytes = _header_bytes(path, file.read(12))
            expected = header_bytes + count * 4
            if size != expected:
                hint = "truncated, download it again" if size < expected else "they belong to another .cfg"
                raise ModelError(f"{path}: has {size} bytes, expected {expected} for the layers of the .cfg; {hint}")
            file.seek(header_bytes)
            return np.frombuffer(file.read(), "<f4")
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file, expected Darknet .weights") from None
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read: {cause.strerror}") from cause


def _header_bytes(path: Path, start: bytes) -> int:
    """Return the bytes of the header: three int32 and the count of seen images, 64 bits wide since version 0.2."""
    if len(start) < 12:
        raise ModelError(f"{path}: has {len(start)} bytes, expected Darknet .weights with a header of 16 or 20")
    major, minor, _ = struct.unpack("<iii", start)
    # The same test as Darknet's load_weights_upto; files above 1000 were written transposed, for layers not converted.
    wide = major * 10 + minor >= 2 and major < 1000 and minor < 1000
    return 20 if wide else 16


COLORS: dict[int, Literal["GRAY", "RGB"]] = {1: "GRAY", 3: "RGB"}  # by the number of an input's channels
_SIDE_PX = (8, 8192)  # what model.toml allows
# Per-channel QDQ needs 13 at least; 17 is run by every ONNX Runtime that a target may name.
_OPSET = 17
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
        """Return the tensor that `section` reads when it names none."""
        return self.input if section.index == 0 else self.layer(section, -1)

    def layer(self, section: Section, number: int) -> Value:
        """Return a layer's output; a negative number counts back from `section`."""
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
        """Return the finished and checked ONNX model: opset 17, batch 1, static shapes, one output a head."""
        initializers = [
            numpy_helper.from_array(array, f"{layer}_{part}")
            for layer, numbers in weights.items()
            for part, array in zip(("weights", "bias"), numbers.folded(), strict=True)
        ]
        outputs = [_describe(head.value) for head in self.heads]
        constants = [*self._constants, *initializers]
        graph = helper.make_graph(self._nodes, name, [_describe(self.input)], outputs, constants)
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, producer_name="edge-sdk", opset_imports=opsets, ir_version=_IR_VERSION)
        # Strict shape inference proves that the shapes computed here are those that ONNX computes.
        onnx.checker.check_model(model, full_check=True)
        return model


def _describe(value: Value) -> onnx.ValueInfoProto:
    shape = (1, value.channels, value.height, value.width)
    return helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape)


def build_graph(net: Section, layers: Sequence[Section]) -> Graph:
    """Return the graph of a .cfg's sections, with the weights that it wants."""
    channels = net.integer("channels", 3, 1)
    if channels not in COLORS:
        raise net.error(f"channels is {channels}, expected 1 or 3")
    height, width = net.integer("height", None, *_SIDE_PX), net.integer("width", None, *_SIDE_PX)
    graph = Graph(Value("images", channels, height, width))
    for section in layers:
        build = _KINDS.get(section.kind)
        if build is None:
            raise section.error(f"this kind of layer is not supported; supported: {', '.join(_KINDS)}")
        graph.layers.append(build(graph, section))
    if not graph.heads:
        raise net.error("no [yolo] after it, expected a detector with at least one")
    return graph


def _convolutional(graph: Graph, section: Section) -> Value:
    section.refuse(_NEUTRAL_CONVOLUTION)
    source = graph.previous(section)
    filters, groups = section.integer("filters", 1, 1), section.integer("groups", 1, 1)
    if source.channels % groups or filters % groups:
        expected = f"a divisor of {source.channels} channels and {filters} filters"
        raise section.error(f"groups is {groups}, expected {expected}")
    size = section.integer("size", 1, 1)
    padding = size // 2 if section.integer("pad", 0) else section.integer("padding", 0)
    stride_y, stride_x = section.strides()
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
    stride_y, stride_x = section.strides()
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
    numbers = section.numbers("layers", int)
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
    numbers = section.numbers("from", int)
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
    numbers, classes = section.numbers("anchors", float), section.integer("classes", 20, 1)
    pairs = list(zip(numbers[0::2], numbers[1::2], strict=False))
    mask = section.numbers("mask", int) or tuple(range(len(pairs)))
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
