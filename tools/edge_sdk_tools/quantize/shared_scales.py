"""Shared scales: what is joined by a Concat has one range, so that joining is copying.

ONNX Runtime's quantizer gives the result of a Concat a range of its own, and each input is looked up in a table, byte
by byte, to become one of its integers. With one range for all of them it copies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx

_PASSING = ("Concat", "MaxPool", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
"""Operators whose results the quantizer gives the scale of their input, and Concat."""


def share_ranges(
    proto: onnx.ModelProto, ranges: Mapping[str, tuple[float, float]], float_nodes: Collection[str]
) -> dict[str, tuple[float, float]]:
    """Widen ranges until those that meet in a Concat are the same.

    Args:
        proto: simplified.
        ranges: low and high of every activation.
        float_nodes: nodes that are not quantized.

    Returns:
        The same tensors.
    """
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
