"""Other forms of a quantized model, integer for integer: for one core's kernels, and for a picture's levels as input.

The search works with unsigned activations, which are fast on every workstation; the core's form is made once, of what
was chosen (docs/arm-cost.md has the counts). A Cortex-A76 multiplies signed activations without a detour: the same
integers less 128. A Cortex-A72 follows fewer pointers where weights have a zero point other than 0: the same integers
less 1 with a zero point of -1, in 16-bit sums that hold 2 * 127 * 128 and not 2 * 128 * 128. Every core copies fewer
pixels where the first convolution makes two neighbours at once. A graph that takes levels has no first QuantizeLinear,
and layout and colour order are folded in; for all 256 levels it is proved that the device's tables hold what the
operator that is left out would have made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge_sdk.bundle.manifest import InputTensor, InputType, TensorColor
from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.inference.prepare import Prepare, integer_tables
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk_tools.graph.index import GraphIndex, attribute, copy_of, replace_all

_CHANNELS, _FILTERS = 64, 16  # counted: with fewer channels nothing changes, eight filters cost a seventh more
_OFFSET = -1
_LOWEST = -127  # after the offset
_MIDDLE = 128
SIGNED, OFFSETS = "cortex-a76", "cortex-a72"
"""The cores, in qemu's spelling, whose form has signed activations, so that its model takes other integers than the
chosen one, and whose form offsets weights, for which a recipe must leave room. Other cores were not counted, or gain
nothing; they take the model as it is."""
_TO_PLANES = [0, 3, 1, 2]
_TO_PIXELS = [0, 2, 3, 1]
_LEVELS = 256
_ROWS = 8  # the least height of an input
_TWO = 2
_FEW_FILTERS = 32  # counted: with more of them a Cortex-A72 multiplies more than it saves


def wide_weights(proto: onnx.ModelProto, float_nodes: Collection[str]) -> list[str]:
    """Return the names of the constant weights that wide convolutions of a float model read."""
    shapes = {w.name: tuple(w.dims) for w in proto.graph.initializer}
    found = (n.input[1] for n in proto.graph.node if n.name not in float_nodes and _is_wide(n, shapes))
    return list(dict.fromkeys(found))


def _offset_weights(proto: onnx.ModelProto) -> bool:
    """Offset the symmetric signed weights of wide convolutions, in place; return whether there were any."""
    links = GraphIndex(proto.graph)
    found = [name for name in links.constants if _may_be_offset(name, links)]
    for name in found:
        for constant in (name, links.readers(name)[0].input[2]):
            links.set_value(constant, numpy_helper.to_array(links.constants[constant]) + np.int8(_OFFSET))
    return bool(found)


def _may_be_offset(name: str, links: GraphIndex) -> bool:
    """Tell whether only wide convolutions read these integers and the zero point, and whether there is room."""
    dequantizers, integers = links.readers(name), links.value(name)
    if not dequantizers or any(n.op_type != "DequantizeLinear" or n.input[0] != name for n in dequantizers):
        return False
    if len(dequantizers[0].input) < 3:
        return False
    zero_point = dequantizers[0].input[2]
    zero = links.value(zero_point)
    if integers is None or zero is None or integers.dtype != np.int8 or zero.any() or not integers.size:
        return False
    if links.readers(zero_point) != dequantizers or int(integers.min()) + _OFFSET < _LOWEST:
        return False
    readers = [(node, value) for one in dequantizers for value in one.output for node in links.readers(value)]
    return bool(readers) and all(_is_wide(node, {value: integers.shape}) for node, value in readers)


def _is_wide(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Tell whether it is a convolution that gains: of many channels at once, and of more than one pixel."""
    if node.op_type != "Conv" or node.input[1] not in shapes:
        return False
    filters, channels, *kernel = shapes[node.input[1]]
    return (
        attribute(node, "group", 1) == 1 and channels >= _CHANNELS and filters >= _FILTERS and int(np.prod(kernel)) > 1
    )


def _sign_activations(proto: onnx.ModelProto) -> None:
    """Make unsigned zero points and constants signed, in place: each integer is 128 less, each value the same."""
    graph = proto.graph
    integers = {n.input[2] for n in graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")}
    # A constant operand, as of a Mul, is quantized like an activation.
    integers |= {n.input[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    for constant in graph.initializer:
        if constant.name in integers and constant.data_type == TensorProto.UINT8:
            value = numpy_helper.to_array(constant).astype(np.int16) - _MIDDLE
            constant.CopyFrom(numpy_helper.from_array(value.astype(np.int8), constant.name))
    # Types that were inferred before are those of unsigned integers.
    replace_all(graph.value_info, [v for v in graph.value_info if v.type.tensor_type.elem_type != TensorProto.UINT8])


def core_form(proto: onnx.ModelProto, cpu: str) -> onnx.ModelProto | None:
    """Return the form of a quantized model for one core; None where the model is best as it is."""
    if cpu not in (SIGNED, OFFSETS):
        return None
    copy, is_changed = copy_of(proto), True
    if cpu == SIGNED:
        _sign_activations(copy)
    else:
        is_changed = _offset_weights(copy)
    return copy if make_two_at_once(copy) or is_changed else None


class Entrance(NamedTuple):
    """Where layers begin: the name of what they read, and the Transpose that makes it of an NHWC input, or None."""

    tensor: str
    transpose: onnx.NodeProto | None = None


def entrance(graph: onnx.GraphProto) -> Entrance:
    """Find the entrance of a graph with one input."""
    name, links = graph.input[0].name, GraphIndex(graph)
    transpose = links.only_reader(name, "Transpose")
    if transpose is not None and attribute(transpose, "perm") == _TO_PLANES:
        return Entrance(transpose.output[0], transpose)
    return Entrance(name)


def make_two_at_once(proto: onnx.ModelProto, *, in_blocks: bool = False) -> bool:
    """Let the first convolution of a quantized graph make two neighbours of a row at once, in place.

    It has twice the filters, the second half moved by a stride, in a kernel that is wider by a stride: half as many
    places, of which each is copied or looked up once. `in_blocks` joins those pixels of an NHWC input between which it
    moves into one pixel of as many channels, which needs no copy. Returns whether the graph has one that suits: few
    filters and whole numbers of pixels; in blocks of any number of filters, and not without an NHWC input.
    """
    graph, links = proto.graph, GraphIndex(proto.graph)
    door = entrance(graph)
    node = _first_convolution(door.tensor, links)
    after = None if node is None else links.only_reader(node.output[0], "QuantizeLinear")
    if node is None or after is None:
        return False
    integers = numpy_helper.to_array(links.constants[links.makers[node.input[1]].input[0]])
    if integers.ndim != len(_TO_PLANES):
        return False
    filters, channels, height, width = integers.shape
    sides = [side.dim_value for side in graph.input[0].type.tensor_type.shape.dim]
    rows, columns = sides[1:3] if door.transpose is not None else sides[2:]
    (top, left, bottom, right), (down, across) = attribute(node, "pads", [0] * 4), attribute(node, "strides", [1, 1])
    made = ((rows + top + bottom - height) // down + 1, (columns + left + right - width) // across + 1)
    block = _TWO * across if in_blocks else 1
    before = -(-left // block)  # blocks before the row
    gap = before * block - left
    wide = -(-(gap + across + width) // block)
    step = _TWO * across // block
    behind = max(0, (made[1] // _TWO - 1) * step + wide - columns // block - before)
    if (
        (filters > _FEW_FILTERS and not in_blocks)
        or (in_blocks and door.transpose is None)
        or (attribute(node, "group", 1), attribute(node, "auto_pad", b"NOTSET")) != (1, b"NOTSET")
        or attribute(node, "dilations", [1, 1]) != [1, 1]
        or columns % block
        or (columns // block + before + behind - wide) // step + 1 != made[1] / _TWO
    ):
        return False
    both = np.zeros((_TWO * filters, channels, height, wide * block), np.int8)
    for number in range(_TWO):
        start = gap + number * across
        both[number * filters : (number + 1) * filters, ..., start : start + width] = integers
    # From (filters, channels, rows, blocks, pixels) to the order of a pixel of joined channels.
    both = both.reshape(_TWO * filters, channels, height, wide, block).transpose(0, 4, 1, 2, 3)
    both = both.reshape(_TWO * filters, block * channels, height, wide)
    _double(graph, node, links, both)
    changed = {"pads": [top, before, bottom, behind], "strides": [down, step], "kernel_shape": [height, wide]}
    replace_all(node.attribute, [one for one in node.attribute if one.name not in changed])
    node.attribute.extend(helper.make_attribute(key, value) for key, value in changed.items())
    if in_blocks and door.transpose is not None:
        shape = [1, rows, columns // block, block * channels]
        joined = _reshape(graph, door.transpose.input[0], f"{door.tensor}/blocks", shape)
        door.transpose.input[0] = joined.output[0]
        graph.node.insert(0, joined)
    _set_apart(graph, after, [1, *made, filters])
    gone = {node.output[0], after.output[0], door.tensor, *_made_by(links.readers(door.tensor))}
    replace_all(graph.value_info, [value for value in graph.value_info if value.name not in gone])
    return True


def _first_convolution(name: str, links: GraphIndex) -> onnx.NodeProto | None:
    """Return the convolution that alone reads a tensor, quantized or as its integers, and shares no weights."""
    quantizer = links.only_reader(name, "QuantizeLinear")
    dequantizer = links.only_reader(quantizer.output[0] if quantizer is not None else name, "DequantizeLinear")
    node = links.only_reader(dequantizer.output[0], "Conv") if dequantizer is not None else None
    if node is None or links.only_reader(node.input[1], "Conv") is None:
        return None
    makers = [links.maker(read, "DequantizeLinear") for read in node.input[1:]]
    return node if all(m is not None and all(one in links.constants for one in m.input) for m in makers) else None


def _double(graph: onnx.GraphProto, node: onnx.NodeProto, links: GraphIndex, kernel: NDArray[np.int8]) -> None:
    """Give a convolution this kernel of twice the filters, and scales, zero points and bias twice."""
    filters = len(kernel) // _TWO
    for place, dequantizer in enumerate(links.makers[name] for name in node.input[1:]):
        for index, name in enumerate(dequantizer.input):
            value = numpy_helper.to_array(links.constants[name])
            twice = np.concatenate([value] * _TWO) if value.shape == (filters,) else value
            twice = kernel if place == index == 0 else twice
            graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(twice), f"{name}/two"))
            dequantizer.input[index] = f"{name}/two"
    read = {name for other in graph.node for name in other.input}
    replace_all(graph.initializer, [constant for constant in graph.initializer if constant.name in read])


def _set_apart(graph: onnx.GraphProto, quantizer: onnx.NodeProto, shape: Sequence[int]) -> None:
    """Let two pixels that share one follow one another, behind a quantizer: (1, rows, columns, channels)."""
    name = quantizer.output[0]
    quantizer.output[0] = f"{name}/two"
    last = helper.make_node("Transpose", [f"{name}/two"], [f"{name}/last"], f"{name}/channels_last", perm=_TO_PIXELS)
    apart = _reshape(graph, f"{name}/last", f"{name}/apart", shape)
    first = helper.make_node("Transpose", [f"{name}/apart"], [name], f"{name}/channels_first", perm=_TO_PLANES)
    at = next(index for index, node in enumerate(graph.node) if node.output == quantizer.output)
    for number, node in enumerate((last, apart, first), 1):
        graph.node.insert(at + number, node)


def _reshape(graph: onnx.GraphProto, read: str, made: str, shape: Sequence[int]) -> onnx.NodeProto:
    graph.initializer.append(numpy_helper.from_array(np.array(shape), f"{made}/shape"))
    return helper.make_node("Reshape", [read, f"{made}/shape"], [made], made)


class LevelGraph(msgspec.Struct, frozen=True, eq=False):
    """A graph, and the tensor that it takes."""

    proto: onnx.ModelProto
    tensor: InputTensor


def level_graphs(proto: onnx.ModelProto, spec: InputSpec) -> list[LevelGraph] | str:
    """Return the graphs that take integers, the likely fastest first; or why there are none.

    ONNX Runtime convolves integers in NHWC, which is how cameras deliver pictures too: an NHWC input saves the graph a
    Transpose and the device a split into planes. Where only convolutions read the input, their weights take BGR as well
    as RGB, and the device need not touch the picture after resizing it.
    """
    door = entrance(proto.graph)
    quantizers = _quantizers(proto.graph, door)
    if isinstance(quantizers, str):
        return quantizers
    integers = _integers(quantizers[0], proto, spec)
    if isinstance(integers, str):
        return integers
    if spec.color == "GRAY":
        layouts = [spec.layout]  # one plane lies in memory as one pixel after the other
    else:
        layouts = ["NHWC", "NCHW"] if door.transpose is not None or spec.layout == "NCHW" else ["NHWC"]
    return [_graph(proto, spec, msgspec.structs.replace(integers, layout=layout)) for layout in layouts]


def with_fourth_channel(proto: onnx.ModelProto, spec: InputSpec, taken: InputTensor) -> LevelGraph | None:
    """Return an NHWC graph of `level_graphs` with a fourth channel, which its first convolutions multiply by nothing.

    None where anything else than convolutions with weights of their own reads the picture, or it is gray.
    """
    door = entrance(proto.graph)
    quantizers = [] if spec.color == "GRAY" else _quantizers(proto.graph, door)
    if isinstance(quantizers, str) or not _only_convolutions(proto.graph, _made_by(quantizers)):
        return None
    color: TensorColor = "RGBA" if spec.color == "RGB" else "BGRA"
    return _graph(proto, spec, msgspec.structs.replace(taken, layout="NHWC", color=color))


def in_blocks(graph: LevelGraph) -> LevelGraph | None:
    """Return an NHWC graph whose first convolution makes two pixels at once of joined ones, or None."""
    copy = copy_of(graph.proto)
    return LevelGraph(copy, graph.tensor) if make_two_at_once(copy, in_blocks=True) else None


def _quantizers(graph: onnx.GraphProto, door: Entrance) -> list[onnx.NodeProto] | str:
    readers = [node for node in graph.node if door.tensor in node.input]
    others = sorted({node.op_type for node in readers} - {"QuantizeLinear"})
    if others or not readers:
        return f"{others[0] if others else 'nothing'} reads the input in float"
    if len({tuple(node.input) for node in readers}) > 1:
        return "the input is quantized in several ways"
    return readers


def _made_by(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    return {name for node in nodes for name in node.output}


def _integers(quantizer: onnx.NodeProto, proto: onnx.ModelProto, spec: InputSpec) -> InputTensor | str:
    """Return what a device would give instead of what is quantized, in the model's layout; or why it could not."""
    constants = GraphIndex(proto.graph).constants
    scale, zero_point = (numpy_helper.to_array(constants[name]) for name in quantizer.input[1:3])
    if zero_point.dtype not in (np.uint8, np.int8) or scale.size != 1:
        return f"the input's integers are {zero_point.dtype}, and those of a device uint8 or int8"
    dtype: InputType = "int8" if zero_point.dtype == np.int8 else "uint8"
    tensor = InputTensor(
        dtype, spec.layout, spec.color, float(scale), int(zero_point) + (_MIDDLE if dtype == "int8" else 0)
    )
    given, made = np.stack(integer_tables(spec, tensor)), _quantized_levels(spec, quantizer, scale, zero_point)
    wrong = np.nonzero(given != made)[-1]
    if wrong.size:
        return f"level {wrong[0]} becomes {made[..., wrong[0]].flat[0]} in the quantized model"
    plain = InputTensor(dtype, spec.layout, spec.color)
    return plain if np.array_equal(given, np.stack(integer_tables(spec, plain))) else tensor


def _quantized_levels(
    spec: InputSpec, quantizer: onnx.NodeProto, scale: NDArray[np.float32], zero_point: NDArray[Any]
) -> NDArray[np.uint8]:
    """Return what ONNX Runtime makes of every level as the device normalises it, its bits as uint8 (channels, 256)."""
    ramp = np.broadcast_to(np.arange(_LEVELS, dtype=np.uint8)[None, :, None], (_ROWS, _LEVELS, 3))
    strip = msgspec.structs.replace(spec, size_wh=(_LEVELS, _ROWS), layout="NCHW")
    shape, constants = strip.tensor_shape, quantizer.input[1:3]
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["normalised", *constants], ["integers"])],
        "quantizer",
        [helper.make_tensor_value_info("normalised", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("integers", helper.np_dtype_to_tensor_dtype(zero_point.dtype), shape)],
        [numpy_helper.from_array(scale, constants[0]), numpy_helper.from_array(zero_point, constants[1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = Session(model.SerializeToString(), SessionSettings(), "the first QuantizeLinear")
    [made] = session.run(Prepare(strip).normalise(np.ascontiguousarray(ramp)))
    return made[0, :, 0].view(np.uint8)


def _graph(proto: onnx.ModelProto, spec: InputSpec, tensor: InputTensor) -> LevelGraph:
    """Return the graph that takes such a tensor, in BGR where that saves the device a pass."""
    copy = copy_of(proto)
    graph = copy.graph
    door = entrance(graph)
    quantizers = [node for node in graph.node if door.tensor in node.input]
    convolutions = _only_convolutions(graph, _made_by(quantizers))
    links = GraphIndex(graph)
    stored = [links.makers[node.input[1]].input[0] for node in convolutions]
    weights = {name: numpy_helper.to_array(links.constants[name]) for name in stored}
    if tensor.channels == 4:  # all products with the fourth channel are 0
        for name, values in weights.items():
            links.set_value(name, np.pad(values, ((0, 0), (0, 1), (0, 0), (0, 0))))
    elif tensor.layout == "NHWC" and spec.color == "RGB" and convolutions:  # the same products are summed
        for name, values in weights.items():
            links.set_value(name, values[:, ::-1])
        tensor = msgspec.structs.replace(tensor, color="BGR")
    has_planes = spec.layout == "NCHW" or door.transpose is not None
    _enter_with_levels(graph, door, quantizers, transposed=tensor.layout == "NHWC" and has_planes)
    [image] = graph.input
    integer = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    image.CopyFrom(helper.make_tensor_value_info(image.name, integer, tensor.shape(spec.size_wh)))
    return LevelGraph(copy, tensor)


def _enter_with_levels(
    graph: onnx.GraphProto, door: Entrance, quantizers: Sequence[onnx.NodeProto], *, transposed: bool
) -> None:
    """Let the layers read the input where they read its integers."""
    gone = {door.tensor, *_made_by(quantizers)}
    name = graph.input[0].name
    levels = f"{name}_levels" if transposed else name
    for node in (*quantizers, *([door.transpose] if door.transpose is not None else [])):
        graph.node.remove(node)
    for node in graph.node:
        for index, read in enumerate(node.input):
            if read in gone:
                node.input[index] = levels
    if transposed:
        graph.node.insert(0, helper.make_node("Transpose", [name], [levels], name=levels, perm=_TO_PLANES))
    replace_all(graph.value_info, [value for value in graph.value_info if value.name not in gone])


def _only_convolutions(graph: onnx.GraphProto, integers: set[str]) -> list[onnx.NodeProto]:
    """Return the convolutions that read the input; none where anything else does, or shares their weights."""
    links = GraphIndex(graph)
    convolutions = []
    for dequantizer in (node for name in integers for node in links.readers(name)):
        for node in links.readers(dequantizer.output[0]):
            weight = links.maker(node.input[1], "DequantizeLinear") if node.op_type == "Conv" else None
            if weight is None or weight.input[0] not in links.constants:
                return []
            is_shared = len(links.readers(weight.output[0])) + len(links.readers(weight.input[0])) > 2
            if is_shared or attribute(node, "group", 1) != 1:
                return []
            convolutions.append(node)
    return convolutions
