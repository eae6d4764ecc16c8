"""A quantized graph that takes a picture's levels: its first QuantizeLinear gone, layout and colour order folded in.

Requires a QDQ model; ensures the same integers from there on, or says why there is no such graph. Proves for all 256
levels that what is left out changed nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge_sdk.manifest import InputTensor, as_taken
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare
from edge_sdk_tools.quantize import TO_PLANES, Entrance, entrance, pixel_range

_LEVELS = 256
_ROWS = 8  # the least height of an input


class LevelGraph(msgspec.Struct, frozen=True, eq=False):
    """A graph, and what it takes."""

    proto: onnx.ModelProto
    tensor: InputTensor


def level_graphs(proto: onnx.ModelProto, spec: InputSpec) -> list[LevelGraph] | str:
    """The graphs that take levels, the likely fastest first; or why there are none.

    ONNX Runtime convolves integers in NHWC, which is how cameras deliver pictures too: an NHWC input saves the graph a
    Transpose and the device a split into planes. Where only convolutions read the input, their weights take BGR as well
    as RGB, and the device need not touch the picture after resizing it.

    Args:
        proto: quantized, with one input; left as it is.
        spec: of the model's own input, float32.
    """
    if isinstance(why := pixel_range(spec), str):
        return why
    door = entrance(proto.graph)
    found = _quantizers(proto.graph, door)
    if isinstance(found, str):
        return found
    if why := _difference(found[0], proto, spec):
        return why
    if spec.color == "GRAY":
        layouts = [spec.layout]  # one plane lies in memory as one pixel after the other
    else:
        layouts = ["NHWC", "NCHW"] if door.transpose is not None or spec.layout == "NCHW" else ["NHWC"]
    return [_graph(proto, spec, layout) for layout in layouts]


def _quantizers(graph: onnx.GraphProto, door: Entrance) -> list[onnx.NodeProto] | str:
    """The nodes that make integers of the picture, all with the same scale and zero point."""
    readers = [node for node in graph.node if door.tensor in node.input]
    others = sorted({node.op_type for node in readers} - {"QuantizeLinear"})
    if others or not readers:
        return f"{others[0] if others else 'nothing'} reads the input in float"
    if len({tuple(node.input) for node in readers}) > 1:
        return "the input is quantized in several ways"
    return readers


def _difference(quantizer: onnx.NodeProto, proto: onnx.ModelProto, spec: InputSpec) -> str:
    """What quantizing a normalised level gives instead of the level; empty when it gives every level back."""
    weights = {w.name: w for w in proto.graph.initializer}
    scale, zero_point = (numpy_helper.to_array(weights[name]) for name in quantizer.input[1:3])
    if zero_point.dtype != np.uint8 or scale.size != 1:
        return f"the input's integers are {zero_point.dtype}, and levels are uint8"
    got = np.clip(np.rint(_normalised_levels(spec) / scale) + np.float32(zero_point), 0, _LEVELS - 1)
    wrong = np.nonzero(got != np.arange(_LEVELS))[-1]
    return f"level {wrong[0]} becomes {got[..., wrong[0]].flat[0]:g} in the quantized model" if wrong.size else ""


def _normalised_levels(spec: InputSpec) -> NDArray[np.float32]:
    """Every level as the device normalises it, float32 (channels, 8, 256)."""
    ramp = np.broadcast_to(np.arange(_LEVELS, dtype=np.uint8)[None, :, None], (_ROWS, _LEVELS, 3))
    strip = msgspec.structs.replace(spec, size_wh=(_LEVELS, _ROWS), layout="NCHW")
    normalised: NDArray[np.float32] = Prepare(strip).normalise(np.ascontiguousarray(ramp))[0]
    return normalised


def _graph(proto: onnx.ModelProto, spec: InputSpec, layout: Literal["NCHW", "NHWC"]) -> LevelGraph:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    graph = copy.graph
    door = entrance(graph)
    quantizers = [node for node in graph.node if door.tensor in node.input]
    integers = {name for node in quantizers for name in node.output}
    convolutions = _only_convolutions(graph, integers)
    swaps = layout == "NHWC" and spec.color == "RGB" and bool(convolutions)
    if swaps:
        _reverse_channels(graph, convolutions)
    tensor = InputTensor("uint8", layout, "BGR" if swaps else spec.color)
    has_planes = spec.layout == "NCHW" or door.transpose is not None
    _enter_with_levels(graph, door, quantizers, transposed=layout == "NHWC" and has_planes)
    [image] = graph.input
    shape = as_taken(spec, tensor)[0].tensor_shape
    image.CopyFrom(helper.make_tensor_value_info(image.name, TensorProto.UINT8, shape))
    return LevelGraph(copy, tensor)


def _enter_with_levels(
    graph: onnx.GraphProto, door: Entrance, quantizers: Sequence[onnx.NodeProto], *, transposed: bool
) -> None:
    """Let the layers read the input where they read its integers."""
    gone = {door.tensor, *(name for node in quantizers for name in node.output)}
    name = graph.input[0].name
    levels = f"{name}_levels" if transposed else name
    for node in (*quantizers, *([door.transpose] if door.transpose is not None else [])):
        graph.node.remove(node)
    for node in graph.node:
        for index, read in enumerate(node.input):
            if read in gone:
                node.input[index] = levels
    if transposed:
        graph.node.insert(0, helper.make_node("Transpose", [name], [levels], name=levels, perm=TO_PLANES))
    known = [value for value in graph.value_info if value.name not in gone]
    del graph.value_info[:]
    graph.value_info.extend(known)


def _only_convolutions(graph: onnx.GraphProto, integers: set[str]) -> list[onnx.NodeProto]:
    """The convolutions that read the input; none where anything else does, or their weights serve others too."""
    readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    makers = {name: node for node in graph.node for name in node.output}
    weights = {w.name: w for w in graph.initializer}
    convolutions = []
    for dequantizer in (node for name in integers for node in readers[name]):
        for node in readers[dequantizer.output[0]]:
            weight = makers.get(node.input[1]) if node.op_type == "Conv" else None
            if weight is None or weight.op_type != "DequantizeLinear" or weight.input[0] not in weights:
                return []
            is_shared = len(readers[weight.output[0]]) + len(readers[weight.input[0]]) > 2
            is_by_output = numpy_helper.to_array(weights[weight.input[1]]).size == 1 or _attribute(weight, "axis") == 0
            if is_shared or not is_by_output or _attribute(node, "group") != 1:
                return []
            convolutions.append(node)
    return convolutions


def _attribute(node: onnx.NodeProto, name: str) -> object:
    """Its value; 1 where it is left out, as ONNX has it for a convolution's group and a DequantizeLinear's axis."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), 1)


def _reverse_channels(graph: onnx.GraphProto, convolutions: Sequence[onnx.NodeProto]) -> None:
    """Make convolutions of RGB convolutions of BGR: the sums are the same, of the same products."""
    makers = {name: node for node in graph.node for name in node.output}
    weights = {w.name: w for w in graph.initializer}
    for node in convolutions:
        stored = weights[makers[node.input[1]].input[0]]
        values = numpy_helper.to_array(stored)
        stored.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values[:, ::-1]), stored.name))
