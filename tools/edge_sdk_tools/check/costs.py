"""Compute from shapes what one run of a model costs: parameters, multiply-accumulates, memory of activations.

The module defines what is counted; docs/check.md repeats it. Fused and quantized operators count as those they replace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import onnx
from onnx import TensorProto

from edge_sdk_tools.check.model_file import tensors
from edge_sdk_tools.check.report import Costs, Finding, OperatorUse, error, note
from edge_sdk_tools.graph.index import FAR, Value, Values, attribute, element_count, element_name, nodes_of

NOT_COUNTED = ("Attention", "DeformConv", "Einsum", "GRU", "LSTM", "RNN")
"""Operators that multiply and accumulate in ways that are not counted."""

_INT8_SHRINKS = 4
_NOT_PARAMETERS = (TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING)

_CONVOLUTIONS = ("Conv", "ConvInteger", "FusedConv", "QLinearConv")
_PRODUCTS = ("MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul")
_COUNTED = (*_CONVOLUTIONS, *_PRODUCTS, "ConvTranspose", "Gemm", "FusedGemm")


def _count(node: onnx.NodeProto, inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> int:
    """Return the multiply-accumulates of a node that is counted."""
    if node.op_type in _CONVOLUTIONS:  # for every output element the input channels of its group times the kernel
        return element_count(outputs[0]) * element_count(inputs[3 if node.op_type == "QLinearConv" else 1][1:])
    if node.op_type == "ConvTranspose":  # for every input element the output channels of its group times the kernel
        return element_count(inputs[0]) * element_count(inputs[1][1:])
    if node.op_type in _PRODUCTS:
        return element_count(outputs[0]) * inputs[0][-1]
    return element_count(outputs[0]) * inputs[0][0 if attribute(node, "transA", 0) else 1]


def node_macs(node: onnx.NodeProto, values: Values) -> int | None:
    """Return the multiply-accumulates of one node; 0 for what is not counted, None where a shape is not known."""
    if node.op_type not in _COUNTED:
        return 0
    shapes = [[_known(values.get(name)) for name in side if name] for side in (node.input, node.output)]
    inputs, outputs = ([shape for shape in side if shape is not None] for side in shapes)
    if len(inputs) != len(shapes[0]) or len(outputs) != len(shapes[1]):
        return None
    try:
        return min(_count(node, inputs, outputs), FAR)
    except IndexError:  # an input or an axis that the operator must have, and the file lacks
        return None


def measure(proto: onnx.ModelProto, weights: Collection[str], values: Values) -> Costs:
    """Add up the costs of a skeleton and its weights, of which these are the names."""
    # Constants that are a trained parameter, and no bound, shape or axis.
    small = [t for t in tensors(proto.graph) if t.dims and t.data_type not in _NOT_PARAMETERS]
    held = [values[name] for name in weights if name in values]
    held += [Value(element_name(t.data_type), tuple(t.dims)) for t in small]
    macs = [node_macs(node, values) for node in proto.graph.node if node.op_type in _COUNTED]
    peak, where = _peak(proto, weights, values)
    return Costs(
        parameters=min(sum(value.count or 0 for value in held), FAR),
        weight_bytes=min(sum(value.bytes or 0 for value in held), FAR),
        macs=_sum(macs),
        peak_activation_bytes=peak,
        peak_node=where,
        unknown_nodes=sum(any(_known(values.get(o)) is None for o in n.output if o) for n in proto.graph.node),
    )


def operator_uses(proto: onnx.ModelProto, values: Values) -> tuple[OperatorUse, ...]:
    """Count nodes by type of operator, the most multiply-accumulates first."""
    counts: dict[tuple[str, str], list[int | None]] = {}
    for node in nodes_of(proto.graph.node):
        counts.setdefault((node.domain, node.op_type), []).append(node_macs(node, values))
    uses = [OperatorUse(domain, name, len(macs), _sum(macs)) for (domain, name), macs in counts.items()]
    return tuple(sorted(uses, key=lambda use: (-(use.macs or 0), -use.nodes, use.name)))


def check_memory(costs: Costs, allowed_mb: int, target: str) -> list[Finding]:
    """Return a finding if a device with `allowed_mb` MiB cannot hold the model even in INT8, a quarter of float32."""
    needed_mb = (costs.weight_bytes + (costs.peak_activation_bytes or 0)) / _INT8_SHRINKS / 2**20
    if needed_mb <= allowed_mb:
        return []
    what = f"weights and activations take {needed_mb:.0f} MiB even in INT8, {target} has {allowed_mb}"
    return [error("memory", what, "choose a smaller input.size_wh or a smaller model", costs.peak_node)]


def check_counted(uses: Sequence[OperatorUse]) -> list[Finding]:
    """Return a finding if the sum of multiply-accumulates is incomplete."""
    left_out = [use.name for use in uses if use.name in NOT_COUNTED]
    if not left_out:
        return []
    what = f"the multiply-accumulates of {', '.join(left_out)} are not counted"
    return [note("costs", what, "take the sum as a lower bound; `edge-sdk bench` measures on the device")]


def _sum(counts: Sequence[int | None]) -> int | None:
    """Add up what could be counted, `FAR` at most; None where there was something to count and none could be."""
    known = [count for count in counts if count is not None]
    return min(sum(known), FAR) if known or not counts else None


def _peak(proto: onnx.ModelProto, constants: Collection[str], values: Values) -> tuple[int | None, str]:
    """Find the most bytes alive at a node: its inputs, its outputs, and what later nodes still need."""
    images = [image.name for image in proto.graph.input if image.name not in constants]
    # Behind an image of unknown size little but shape arithmetic has a known one: its bytes say nothing.
    if any(name not in values or values[name].bytes is None for name in images):
        return None, ""
    nodes = [node for node in proto.graph.node if node.op_type != "Constant"]
    steps = [images, *(node.output for node in nodes)]
    last = {name: i for i, node in enumerate(nodes, start=1) for inner in nodes_of([node]) for name in inner.input}
    last.update((output.name, len(steps)) for output in proto.graph.output)
    ends: defaultdict[int, int] = defaultdict(int)  # bytes that are free again after a step
    alive, peak, where = 0, 0, ""
    for index, made in enumerate(steps):
        for name in made:
            size = (values[name].bytes or 0) if name in values else 0
            ends[max(index, last.get(name, index))] += size
            alive += size
        if alive > peak:
            peak, where = alive, nodes[index - 1].name if index else ""
        alive -= ends[index]
    return min(peak, FAR), where


def _known(value: Value | None) -> tuple[int, ...] | None:
    if value is None or value.count is None or value.shape is None:
        return None
    return tuple(side for side in value.shape if isinstance(side, int))
