"""Upsampling by copies: a nearest-neighbour Resize of integers as a tensor joined with itself, twice.

ONNX Runtime's Resize works out an address for every byte that it writes. With channels last the neighbours that repeat
are runs of bytes, and joining runs is copying. The values are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edge_sdk_tools.quantize.links import Links

_CHANNELS_LAST, _CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def upsample_by_copies(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Replace, in place, each Resize that only repeats rows and columns, between integers of one scale.

    Args:
        proto: quantized, in QDQ form.
        shapes: of the float model's tensors by name, (N, C, H, W) where an image is resized.
    """
    graph = proto.graph
    links = Links(graph)
    nodes: list[onnx.NodeProto] = []
    copied: set[str] = set()  # outputs of what was replaced
    for node in graph.node:
        if node.op_type == "Resize":
            copies = _copies(node, links, shapes, graph)
            nodes.extend(copies or [node])
            copied.update(node.output if copies else ())
        elif node.op_type != "QuantizeLinear" or node.input[0] not in copied:
            nodes.append(node)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _copies(
    node: onnx.NodeProto, links: Links, shapes: Mapping[str, tuple[int, ...]], graph: onnx.GraphProto
) -> list[onnx.NodeProto]:
    """What computes the same from its integers; nothing where it does more than to repeat."""
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


def _times(node: onnx.NodeProto, links: Links, larger: tuple[int, ...]) -> tuple[int, int] | None:
    """How often it repeats rows and columns, where it does nothing else."""
    scales = links.constant(node.input[2]) if len(node.input) > 2 else None
    if len(larger) != 4 or scales is None or scales.shape != (4,) or scales[0] != 1 or scales[1] != 1:
        return None
    down, across = int(scales[2]), int(scales[3])
    if [down, across] != list(scales[2:]) or min(down, across) < 1 or larger[2] % down or larger[3] % across:
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if attributes.get("mode", b"nearest") != b"nearest":
        return None
    place = attributes.get("coordinate_transformation_mode", b"half_pixel")
    rounding = attributes.get("nearest_mode", b"round_prefer_floor")
    for times, length in ((down, larger[2]), (across, larger[3])):
        if any(_source(place, rounding, index, times) != index // times for index in range(length)):
            return None
    return down, across


def _source(place: bytes, rounding: bytes, index: int, times: int) -> int:
    """Where a value comes from, by ONNX's definition of Resize; -1 for ways that are not known here."""
    exact = {b"asymmetric": index / times, b"half_pixel": (index + 0.5) / times - 0.5}.get(place)
    if exact is None:
        return -1
    nearest = {
        b"floor": np.floor(exact),
        b"ceil": np.ceil(exact),
        b"round_prefer_floor": np.ceil(exact - 0.5),
        b"round_prefer_ceil": np.floor(exact + 0.5),
    }.get(rounding)
    return -1 if nearest is None else max(int(nearest), 0)
