"""What each kind of Darknet layer is in ONNX.

Owns the meaning of options. The formulas are those of AlexeyAB's Darknet; its file is named beside each.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk_tools.importing.darknet_cfg import Section
from edge_sdk_tools.importing.darknet_graph import Graph, Head, Value
from edge_sdk_tools.importing.darknet_weights import ConvolutionWeights

_LEAKY_SLOPE = 0.1  # activations.h: leaky_activate


def add_layer(graph: Graph, section: Section) -> None:
    """Add one layer to the graph.

    Raises:
        ModelError: a kind, an activation or an option that is not converted, or numbers that do not fit together.
    """
    build = _KINDS.get(section.kind)
    if build is None:
        raise section.error(f"this kind of layer is not supported; supported: {', '.join(_KINDS)}")
    graph.layers.append(build(graph, section))


def _convolutional(graph: Graph, section: Section) -> Value:
    section.refuse(_NEUTRAL_CONVOLUTION)
    source = graph.previous(section)
    filters, groups = section.integer("filters", 1, 1), section.integer("groups", 1, 1)
    if source.channels % groups or filters % groups:
        raise section.error(
            f"groups is {groups}, expected a divisor of {source.channels} channels and {filters} filters"
        )
    size = section.integer("size", 1, 1)
    padding = size // 2 if section.integer("pad", 0) else section.integer("padding", 0)
    stride_y, stride_x = _strides(section)
    height = _convolved(section, source.height, size, padding, stride_y)
    width = _convolved(section, source.width, size, padding, stride_x)
    name = f"layer_{section.index}"
    normalize = bool(section.integer("batch_normalize", 0))
    kernel = ConvolutionWeights(
        f"{name}_weights", f"{name}_bias", filters, source.channels // groups, size, batch_normalize=normalize
    )
    graph.weights.append(kernel)
    convolved = graph.node(
        "Conv",
        [source.name, kernel.weights_name, kernel.bias_name],
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
    bounds = [
        graph.constant(f"{name}_starts", [group * share]),
        graph.constant(f"{name}_ends", [(group + 1) * share]),
        graph.constant(f"{name}_axes", [1]),
    ]
    taken = graph.node("Slice", [source.name, *bounds], name)
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
            raise section.error(
                f"layer {number} is {other.channels}x{_size(other)}, expected {total.channels}x{_size(total)}"
            )
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
        raise section.error(
            f"reads {source.channels} channels, expected {expected}: {len(mask)} anchors x (5 + {classes} classes)"
        )
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
    raise section.error(
        f"activation {kind!r} is not supported; supported: linear, leaky, mish, {', '.join(_PLAIN_ACTIVATIONS)}"
    )


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
    "dilation": "1",
    "antialiasing": "0",
    "flipped": "0",
    "dontloadscales": "0",
    "xnor": "0",
    "binary": "0",
    "bin_output": "0",
    "share_index": "-1000000000",
    "assisted_excitation": "0",
    "deform": "0",
    "sway": "0",
    "rotate": "0",
    "stretch": "0",
    "stretch_sway": "0",
    "coordconv": "0",
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
