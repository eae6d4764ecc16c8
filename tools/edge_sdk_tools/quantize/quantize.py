"""INT8 by a recipe: QuantizeLinear and DequantizeLinear around every node that the recipe does not leave float.

Five rewrites make integers cheaper. The inputs of a Concat share one range, so that it only copies. HardSigmoid is no
computation, but another scale of the integers that it reads, which saturate where it does. A shuffle of channels is one
Gather, because a Transpose of five axes moves each byte by itself. A nearest-neighbour Resize becomes Concats of rows
of bytes with channels last, because ONNX Runtime's Resize computes an address for every byte. Softmax runs along the
last axis, because along any other axis ONNX Runtime moves every value twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import TensorsData
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import add_infer_metadata

from edge_sdk.bundle.manifest import PRECISIONS, Precision
from edge_sdk.bundle.target import IntegerType, Target
from edge_sdk_tools.graph.index import GraphIndex, attribute, copy_of, replace_all
from edge_sdk_tools.graph.profile import silenced
from edge_sdk_tools.quantize.calibration import CALIBRATIONS, Calibration
from edge_sdk_tools.quantize.forms import OFFSETS, wide_weights
from edge_sdk_tools.quantize.simplified import QUANTIZED_TYPES, Simplified, failing_as

_SHORT = {"QUInt8": "U8", "QInt8": "S8"}
_PASSING = ("Concat", "MaxPool", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
"""Operators whose results the quantizer gives the scale of their input, and Concat."""
_HARD_STEPS = 254  # between HardSigmoid's 0 and 1: with 255 its middle, 1/2, would be no integer
_CHANNELS_LAST, _CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
_GROUPS_LAST = [0, 2, 1, 3, 4]
# On the root logger the quantizer advises to do what was done above, says of weights of one axis that it is one, and
# that a bias does not fit where it has widened its scale so that it does, but for a rounding of .01 %.
_ADVICE = ("pre-processing before quantization", "is out-of-range for weight", "exceeds the range of a int32")


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one model file. For a float model only `precision` counts, for a dynamic one `reduce_range` too.

    Attributes:
        per_channel: whether each output channel has a weight scale, instead of one scale for the tensor.
        reduce_range: whether weights have 7 bits, for CPUs that would saturate.
        float_nodes: nodes that are left float in addition to the decoding tail.
        shared_scales: whether all inputs of a Concat have one scale, so that it only copies.
        leaves_room: whether the largest weight of wide convolutions is one integer less, so that the form for the core
            may offset the weights.
        core_form: the core, in qemu's spelling, for whose kernels the integers are written; empty for none.
    """

    precision: Precision = "int8"
    activation_type: IntegerType = "QUInt8"
    weight_type: IntegerType = "QInt8"
    per_channel: bool = True
    reduce_range: bool = False
    calibration: Calibration = CALIBRATIONS[0]
    float_nodes: tuple[str, ...] = ()
    shared_scales: bool = False
    leaves_room: bool = False
    core_form: str = ""

    @property
    def is_integer(self) -> bool:
        """Whether the model computes in integers."""
        return PRECISIONS[self.precision].is_integer

    @property
    def is_symmetric(self) -> bool:
        """Whether zero is the middle of every activation's range, as signed integers require."""
        return self.activation_type == "QInt8"

    @property
    def largest_weight(self) -> int:
        """The largest integer that a weight becomes, where weights are signed."""
        return 64 if self.reduce_range else 127

    @property
    def largest_wide_weight(self) -> int:
        """The largest integer that a weight of a wide convolution becomes."""
        return self.largest_weight - 1 if self.leaves_room else self.largest_weight

    @property
    def settings(self) -> dict[str, str | int | bool]:
        """The recipe's settings by name, for the manifest."""
        apart = ("precision", "float_nodes")  # the manifest has these in places of their own
        return {"format": "QDQ", **{k: v for k, v in msgspec.structs.asdict(self).items() if k not in apart}}

    @property
    def text(self) -> str:
        """The recipe in words."""
        types = f"{_SHORT[self.activation_type]}{_SHORT[self.weight_type]}"
        scales = "per channel" if self.per_channel else "per tensor"
        bits = ", 7-bit weights" if self.reduce_range else ""
        room = f", wide kernels to {self.largest_wide_weight}" if self.leaves_room else ""
        joined = ", shared scales" if self.shared_scales else ""
        kept = f", {len(self.float_nodes)} nodes float" if self.float_nodes else ""
        return f"{types} {scales}{bits}{room}{joined}, {self.calibration}{kept}"


def first_recipe(target: Target, *, reduce_range: bool) -> Recipe:
    """Return the recipe with which every search starts: only the tail is float, and inputs of a Concat share scales.

    Among the recipes without float layers it needs the fewest instructions on every core that was counted
    (docs/arm-cost.md), and it is the fastest on x86.
    """
    return Recipe(
        activation_type=target.activation_type,
        weight_type=target.weight_type,
        per_channel=target.per_channel,
        reduce_range=reduce_range,
        shared_scales=True,
        leaves_room=target.cpu == OFFSETS,
    )


def share_ranges(
    proto: onnx.ModelProto, ranges: Mapping[str, tuple[float, float]], float_nodes: Collection[str]
) -> dict[str, tuple[float, float]]:
    """Return ranges, widened until those that meet in a Concat are the same."""
    groups: dict[str, list[str]] = {name: [name] for name in ranges}
    joined: set[str] = set()
    for node in proto.graph.node:
        if node.op_type not in _PASSING or node.name in float_nodes:
            continue
        values = [name for name in (*node.input, *node.output) if name in ranges]
        merged = list(dict.fromkeys(other for name in values for other in groups[name]))
        groups.update(dict.fromkeys(merged, merged))
        if node.op_type == "Concat":
            joined.update(values)
    shared = dict(ranges)
    for group in {id(groups[name]): groups[name] for name in joined}.values():
        span = min(ranges[name][0] for name in group), max(ranges[name][1] for name in group)
        shared.update(dict.fromkeys(group, span))
    return shared


def cut_ranges(proto: onnx.ModelProto, ranges: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Return ranges, from which HardSwish's inputs miss what it makes 0 of anyway: all below -beta/alpha, which is -3.

    Integers are finer for it. What another node reads too keeps its range.
    """
    links, cut = GraphIndex(proto.graph), dict(ranges)
    for hard in proto.graph.node:
        x = hard.input[0] if hard.op_type == "HardSigmoid" else ""
        product = links.only_reader(hard.output[0], "Mul") if x in ranges else None
        slope = attribute(hard, "alpha", 0.2)
        if product is None or x not in product.input or len(links.readers(x)) != 2 or x in links.outputs or slope <= 0:
            continue
        low, high = ranges[x]
        cut[x] = max(low, min(-attribute(hard, "beta", 0.5) / slope, high)), high
    return cut


def scale_hard_sigmoids(proto: onnx.ModelProto) -> None:
    """Replace, in place, each HardSigmoid between unsigned integers by a scale, which costs nothing.

    It reads integers in steps of 1/254 / alpha around a zero point of 254 * beta + 1: at -beta/alpha they are 1, and at
    (1 - beta)/alpha 255, where they saturate as it does. In steps of 1/254 from 1 they are its values. What another
    node reads too, as HardSwish's product does, keeps its own scale: a LeakyRelu without a slope, which ONNX Runtime
    computes by a table of bytes, then makes those integers.
    """
    graph, links = proto.graph, GraphIndex(proto.graph)
    gone: set[str] = set()
    for hard in graph.node:
        before = links.maker(hard.input[0], "DequantizeLinear") if hard.op_type == "HardSigmoid" else None
        after = links.only_reader(hard.output[0], "QuantizeLinear")
        source = links.maker(before.input[0], "QuantizeLinear") if before is not None else None
        slope, zero = attribute(hard, "alpha", 0.2), _HARD_STEPS * attribute(hard, "beta", 0.5) + 1
        if before is None or after is None or source is None or slope <= 0 or not float(round(zero, 3)).is_integer():
            continue
        if numpy_helper.to_array(links.constants[after.input[2]]).dtype != np.uint8 or not 0 <= round(zero) <= 255:
            continue
        names = [f"{hard.name}/{kind}" for kind in ("read_scale", "read_zero", "scale", "zero")]
        steps = (1 / _HARD_STEPS / slope, round(zero), 1 / _HARD_STEPS, 1)
        types = (np.float32, np.uint8) * 2
        graph.initializer.extend(
            numpy_helper.from_array(np.array(value, dtype), name)
            for value, dtype, name in zip(steps, types, names, strict=True)
        )
        is_read_once = links.readers(source.output[0]) == [before] and links.readers(before.output[0]) == [hard]
        is_own = is_read_once and before.output[0] not in links.outputs
        quantizer = source if is_own else after
        quantizer.input[1:] = names[:2]
        for reader in links.readers(after.output[0]):
            reader.input[:] = [quantizer.output[0], *names[2:]]
        if is_own:
            gone.update((before.name, hard.name, after.name))
        else:
            hard.CopyFrom(helper.make_node("LeakyRelu", hard.input, hard.output, hard.name, alpha=1.0))
    replace_all(graph.node, [node for node in graph.node if node.name not in gone])


def softmax_along_last_axis(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Replace, in place, each float Softmax along another axis by one along the last, between two Transposes.

    The values are the same, but for the order in which a row is summed. Before opset 13 the axis meant something else.
    """
    graph = proto.graph
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        shape = shapes.get(node.output[0]) if node.op_type == "Softmax" else None
        nodes.extend([node] if shape is None else _moved(node, len(shape)))
    replace_all(graph.node, nodes)


def _moved(node: onnx.NodeProto, rank: int) -> list[onnx.NodeProto]:
    axis, name = attribute(node, "axis", -1) % rank, node.name
    if axis == rank - 1:
        return [node]
    order = [*(other for other in range(rank) if other != axis), axis]
    back = [order.index(place) for place in range(rank)]
    before, after = f"{name}/along", f"{name}/done"
    return [
        helper.make_node("Transpose", node.input, [before], f"{name}/to_last", perm=order),
        helper.make_node("Softmax", [before], [after], name, axis=rank - 1),
        helper.make_node("Transpose", [after], node.output, f"{name}/from_last", perm=back),
    ]


def shuffle_by_gather(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Replace, in place, each shuffle of channels of a float graph by one Gather: Reshape, Transpose and Reshape.

    In integers, with channels last, that Transpose takes 48 instructions a byte: two thirds of a ShuffleNet's.
    """
    graph, links = proto.graph, GraphIndex(proto.graph)
    gathers: dict[str, onnx.NodeProto] = {}  # by the name of the node in whose place it stands
    gone: set[str] = set()
    for node in graph.node:
        before = links.maker(node.input[0], "Reshape") if node.op_type == "Transpose" else None
        after = links.only_reader(node.output[0], "Reshape") if before else None
        if before is None or after is None or links.only_reader(before.output[0], "Transpose") is None:
            continue
        split, whole = shapes.get(before.output[0], ()), shapes.get(before.input[0])
        is_shuffle = len(split) == 5 and whole == (split[0], split[1] * split[2], *split[3:])
        if not is_shuffle or attribute(node, "perm") != _GROUPS_LAST or shapes.get(after.output[0]) != whole:
            continue
        order, name = np.arange(split[1] * split[2]).reshape(split[1], split[2]).T.ravel(), f"{node.name}/order"
        graph.initializer.append(numpy_helper.from_array(order, name))
        gone.update((before.name, node.name))
        gathers[after.name] = helper.make_node("Gather", [before.input[0], name], after.output, node.name, axis=1)
    replace_all(graph.node, [gathers.get(node.name, node) for node in graph.node if node.name not in gone])


def upsample_by_copies(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Replace, in place, each Resize that only repeats rows and columns, between integers of one scale."""
    graph, links = proto.graph, GraphIndex(proto.graph)
    nodes: list[onnx.NodeProto] = []
    copied: set[str] = set()  # outputs of what was replaced
    for node in graph.node:
        if node.op_type == "Resize":
            copies = _copies(node, links, shapes, graph)
            nodes.extend(copies or [node])
            copied.update(node.output if copies else ())
        elif node.op_type != "QuantizeLinear" or node.input[0] not in copied:
            nodes.append(node)
    replace_all(graph.node, nodes)


def _copies(
    node: onnx.NodeProto, links: GraphIndex, shapes: Mapping[str, tuple[int, ...]], graph: onnx.GraphProto
) -> list[onnx.NodeProto]:
    """Return nodes that compute the same from its integers; none where it does more than to repeat."""
    before = links.maker(node.input[0], "DequantizeLinear")
    after = links.only_reader(node.output[0], "QuantizeLinear")
    larger = shapes.get(node.output[0])
    if before is None or after is None or larger is None:
        return []
    times = _times(node, links, larger)
    if times is None or not all(links.same(a, b) for a, b in zip(before.input[1:], after.input[1:], strict=True)):
        return []
    (down, across), (batch, channels, height, width), name = times, larger, node.name
    rows, image = f"{name}/rows", f"{name}/image"
    graph.initializer.append(numpy_helper.from_array(np.array([batch, height // down, width * channels]), rows))
    graph.initializer.append(numpy_helper.from_array(np.array([batch, height, width, channels]), image))
    values = [before.input[0], *(f"{name}/copied_{number}" for number in range(5)), after.output[0]]
    return [
        helper.make_node("Transpose", values[0:1], values[1:2], f"{name}/channels_last", perm=_CHANNELS_LAST),
        helper.make_node("Concat", values[1:2] * across, values[2:3], f"{name}/across", axis=3),
        helper.make_node("Reshape", [values[2], rows], values[3:4], f"{name}/as_rows"),
        helper.make_node("Concat", values[3:4] * down, values[4:5], f"{name}/down", axis=2),
        helper.make_node("Reshape", [values[4], image], values[5:6], f"{name}/as_image"),
        helper.make_node("Transpose", values[5:6], values[6:7], f"{name}/channels_first", perm=_CHANNELS_FIRST),
    ]


def _times(node: onnx.NodeProto, links: GraphIndex, larger: tuple[int, ...]) -> tuple[int, int] | None:
    """Return how often a Resize repeats each row and each column; None where it does something else."""
    scales = links.value(node.input[2]) if len(node.input) > 2 else None
    if len(larger) != 4 or scales is None or scales.shape != (4,) or scales[0] != 1 or scales[1] != 1:
        return None
    down, across = int(scales[2]), int(scales[3])
    if [down, across] != list(scales[2:]) or min(down, across) < 1 or larger[2] % down or larger[3] % across:
        return None
    if attribute(node, "mode", b"nearest") != b"nearest":
        return None
    return (down, across) if _repeats(node, down, larger[2]) and _repeats(node, across, larger[3]) else None


_ROUNDING: dict[bytes, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    b"floor": np.floor,
    b"ceil": np.ceil,
    b"round_prefer_floor": lambda exact: np.ceil(exact - 0.5),
    b"round_prefer_ceil": lambda exact: np.floor(exact + 0.5),
}


def _repeats(node: onnx.NodeProto, times: int, length: int) -> bool:
    """Tell by ONNX's definition of Resize whether so many output values follow the rule that each is there n times."""
    place = attribute(node, "coordinate_transformation_mode", b"half_pixel")
    shift = {b"asymmetric": 0.0, b"half_pixel": 0.5}.get(place)
    nearest = _ROUNDING.get(attribute(node, "nearest_mode", b"round_prefer_floor"))
    if shift is None or nearest is None:
        return False
    index = np.arange(length)
    return bool((np.maximum(nearest((index + shift) / times - shift), 0) == index // times).all())


class Quantized(msgspec.Struct, frozen=True):
    """An ONNX file before conversion; in QDQ form where its ranges are fixed.

    `float_nodes` were left float on purpose, the tail's first; `macs` has the multiply-accumulates of every node that
    should run in integers, by its name; `has_integers` tells whether any tensor was quantized at all.
    """

    path: Path
    float_nodes: tuple[str, ...] = ()
    macs: dict[str, int] = {}
    has_integers: bool = False


def quantize(model: Simplified, ranges: Mapping[str, tuple[float, float]], recipe: Recipe, path: Path) -> Quantized:
    """Quantize by a recipe; a ModelError says that the quantizer cannot."""
    float_nodes = (*model.tail, *(name for name in recipe.float_nodes if name not in set(model.tail)))
    with failing_as("quantization failed", path.parent):
        proto = quantized_proto(model.proto, ranges, recipe, float_nodes)
        onnx.save(proto, path)
    macs = {name: count for name, count in model.macs.items() if name not in set(recipe.float_nodes)}
    has_integers = any(node.op_type == "QuantizeLinear" for node in proto.graph.node)
    return Quantized(path, float_nodes, macs, has_integers)


def quantized_proto(
    proto: onnx.ModelProto, ranges: Mapping[str, tuple[float, float]], recipe: Recipe, float_nodes: Sequence[str]
) -> onnx.ModelProto:
    """Return the quantized graph; whatever ONNX Runtime's quantizer raises passes."""
    copy, shapes = copy_of(proto), shapes_of(proto)
    shuffle_by_gather(copy, shapes)
    add_infer_metadata(copy)  # or the quantizer would write the model to the disk and infer its shapes once more
    ranges = cut_ranges(proto, ranges)
    if recipe.shared_scales:
        ranges = share_ranges(proto, ranges, set(float_nodes))
    as_floats = {name: (np.float32(low), np.float32(high)) for name, (low, high) in ranges.items()}
    with silenced(*_ADVICE):  # the quantizer narrates
        quantizer = QDQQuantizer(
            copy,
            recipe.per_channel,
            recipe.reduce_range,
            QuantType[recipe.weight_type],
            QuantType[recipe.activation_type],
            TensorsData(CalibrationMethod.MinMax, as_floats),
            [],
            list(float_nodes),
            list(QUANTIZED_TYPES),
            {
                "ActivationSymmetric": recipe.is_symmetric,
                "TensorQuantOverrides": _weight_ranges(proto, recipe, float_nodes),
            },
        )
        _index(quantizer.model, copy)
        quantizer.quantize_model()
        quantizer.model.topological_sort()  # ONNX wants nodes after what they read
    result: onnx.ModelProto = quantizer.model.model
    replace_all(result.metadata_props, proto.metadata_props)
    scale_hard_sigmoids(result)
    upsample_by_copies(result, shapes)
    softmax_along_last_axis(result, shapes)
    return result


def _index(model: ONNXModel, proto: onnx.ModelProto) -> None:
    """Spare the quantizer a search of all nodes and all weights for each tensor, a third of its time."""
    links = GraphIndex(proto.graph)

    def replace(old: str, new: str) -> None:
        for node in links.readers(old):
            model.replace_node_input(node, old, new)

    model.replace_input_of_all_nodes = replace
    model.initializer_extend = model.initializer().extend


def _weight_ranges(
    proto: onnx.ModelProto, recipe: Recipe, float_nodes: Sequence[str]
) -> dict[str, list[dict[str, float | int]]]:
    """Return wider ranges for weights that must not reach the largest integer, as the quantizer takes them."""
    if not recipe.leaves_room:
        return {}
    wider, links = recipe.largest_weight / recipe.largest_wide_weight, GraphIndex(proto.graph)
    axis: dict[str, float | int] = {"axis": 0} if recipe.per_channel else {}
    found: dict[str, list[dict[str, float | int]]] = {}
    for name in wide_weights(proto, set(float_nodes)):
        weights = np.abs(numpy_helper.to_array(links.constants[name]).astype(np.float64))
        rows = weights.reshape(len(weights) if recipe.per_channel else 1, -1)
        found[name] = [{**axis, "rmin": -peak, "rmax": peak} for peak in (rows.max(axis=1) * wider).tolist()]
    return found


def shapes_of(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a graph names, by tensor."""
    values = (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
    return {value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim) for value in values}
