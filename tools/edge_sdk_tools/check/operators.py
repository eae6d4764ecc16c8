"""Operators of a model, held against what the target's execution providers have.

The module writes the messages about operators that are missing, custom, of the wrong type, or control flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from edge_sdk.inference.runtime import EXTENSIONS_DOMAIN, EXTENSIONS_PACKAGE
from edge_sdk_tools.check.cpu_kernels import ONNX_DOMAINS, CpuKernels, Verdict, coverage, operator_schema
from edge_sdk_tools.check.report import CPU, Finding, ProviderCoverage
from edge_sdk_tools.check.values import Values, graph_values, nodes_of

_STEPS = {
    "If": "export it with a condition that is fixed (traced, not scripted)",
    "Loop": "export it with the loop unrolled",
    "Scan": "export it with the loop unrolled",
}


def judge_nodes(
    proto: onnx.ModelProto, kernels: CpuKernels, opsets: Mapping[str, int]
) -> list[tuple[onnx.NodeProto, Verdict]]:
    """Say of every node, those inside control flow included, what ONNX Runtime's CPU provider does with it."""
    return _judge_graph(proto.graph, {}, kernels, opsets)


def check_kernels(judged: Sequence[tuple[onnx.NodeProto, Verdict]], runtime: str, opset: int) -> list[Finding]:
    """Name the nodes that the CPU provider does not run, or not as they are; each kind of node once.

    Args:
        judged: of `judge_nodes`.
        runtime: what to call the runtime: `ONNX Runtime 1.20.1`.
        opset: of ai.onnx.
    """
    groups: dict[tuple[str, str, Verdict], list[onnx.NodeProto]] = {}
    for node, verdict in judged:
        if verdict.kind != "runs":
            groups.setdefault((node.domain, node.op_type, verdict), []).append(node)
    return [_kernel_finding(nodes, verdict, runtime, opset) for (_, _, verdict), nodes in groups.items()]


def check_control_flow(proto: onnx.ModelProto) -> list[Finding]:
    """Name If, Loop and Scan: they run, but hide what is in them from quantization and from other providers."""
    groups: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes_of(proto.graph.node):
        if node.op_type in _STEPS and not node.domain:
            groups.setdefault(node.op_type, []).append(node)
    return [
        Finding(
            severity="warning",
            rule="control-flow",
            where=nodes[0].name,
            what=f"{_named(nodes)}: ONNX Runtime runs {operator}, but what is inside stays float",
            next_step=_STEPS[operator],
        )
        for operator, nodes in groups.items()
    ]


def cover(
    providers: Sequence[str],
    judged: Sequence[tuple[onnx.NodeProto, Verdict]],
    opsets: Mapping[str, int],
    source: str,
) -> tuple[ProviderCoverage, ...]:
    """Say of each provider, in the target's order, what it takes."""
    nodes = [node for node, _ in judged]
    left = tuple(sorted({node.op_type for node, verdict in judged if not verdict.is_supported}))
    on_cpu = sum(verdict.is_supported for _, verdict in judged)
    return tuple(
        ProviderCoverage(CPU, source, len(nodes), on_cpu, (), left) if p == CPU else coverage(p, nodes, opsets)
        for p in providers
    )


def _judge_graph(
    graph: onnx.GraphProto, around: Values, kernels: CpuKernels, opsets: Mapping[str, int]
) -> list[tuple[onnx.NodeProto, Verdict]]:
    values = {**around, **graph_values(graph)}
    judged = []
    for node in graph.node:
        judged.append((node, kernels.judge(node, values, opsets)))
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                judged += _judge_graph(inner, values, kernels, opsets)
    return judged


def _kernel_finding(nodes: Sequence[onnx.NodeProto], verdict: Verdict, runtime: str, opset: int) -> Finding:
    node = nodes[0]
    rule, what, step = _words(node, verdict, f"{runtime}'s CPU provider", opset)
    return Finding(
        severity="warning" if verdict.is_supported else "error",
        rule=rule,
        where=node.name,
        what=f"{_named(nodes)}: {what}",
        next_step=step,
    )


def _named(nodes: Sequence[onnx.NodeProto]) -> str:
    return f"node {nodes[0].name!r}" + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "")


def _words(node: onnx.NodeProto, verdict: Verdict, provider: str, opset: int) -> tuple[str, str, str]:
    """Rule, sentence and next step for a node that does not simply run."""
    is_onnx = node.domain in ONNX_DOMAINS
    name = node.op_type if is_onnx else f"{node.domain}.{node.op_type}"
    of_body = f"{verdict.operator} in the body of {name}" if verdict.operator != node.op_type else name
    if verdict.kind in ("casts", "type"):
        has = f"{of_body} of tensor({verdict.element}): {provider} has it for {', '.join(verdict.available)}"
        if verdict.is_supported:
            return "kernel", f"{has}; it will run in float, between Casts", "export the model in float32"
        return "kernel", has, "cast to one of these types before it, or export the model in float32"
    if verdict.kind == "version":
        what = f"{provider} has {of_body}, but not as opset {opset} defines it"
        return "kernel", what, "export the model with a lower opset"
    if node.domain == EXTENSIONS_DOMAIN:
        return _of_extensions(name, verdict)
    if not is_onnx:
        what = f"custom operator {name}, which {provider} does not have, and edge-sdk brings no operators"
        return "custom-operator", what, "export the model in ONNX's own operators, or without that layer"
    schema = operator_schema(node.domain, node.op_type, opset)
    if schema is None or schema.is_deprecated:
        what = f"ONNX has no operator {name} in opset {opset}"
        return "unknown-operator", what, "export the model again, with the opset that it is written for"
    return "kernel", f"{provider} has no {of_body}", "export the model with other operators in its place"


def _of_extensions(name: str, verdict: Verdict) -> tuple[str, str, str]:
    what = f"custom operator {name}, which comes with onnxruntime-extensions"
    if verdict.is_supported:
        return "custom-operator", f"{what}; the device needs that too", f"there: pip install '{EXTENSIONS_PACKAGE}'"
    return "custom-operator", f"{what}; that is not installed here", f"pip install '{EXTENSIONS_PACKAGE}'"
