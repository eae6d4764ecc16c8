"""Model-local functions: put in the place of their calls, within limits.

Owns the limits. A model can define functions that call functions: a chain that is deep enough overflows the stack of
ONNX Runtime, and a tree of them grows without end, from a few hundred bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import onnx
import onnx.inliner

from edge_sdk.core.errors import first_line
from edge_sdk_tools.check.refusal import RefusedModelError

DEEPEST = 100
"""Calls inside calls; exporters nest as deep as a model's modules do, about ten."""
MOST_NODES = 100_000
"""Nodes after everything has been put in place; the largest detectors have some thousands."""

_Key: TypeAlias = tuple[str, str]


def inline_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Put the functions of a model in the place of their calls.

    Raises:
        RefusedModelError: they nest too deep, grow too large, call themselves, or cannot be put in place.
    """
    _check_size(proto)
    if not proto.functions:
        return proto
    defined = {(f.domain, f.name) for f in proto.functions}
    try:
        inlined = onnx.inliner.inline_local_functions(proto)
    except Exception as cause:  # onnx raises its own C++ types, which share no root
        raise RefusedModelError(
            f"functions cannot be put in the place of their calls: {first_line(cause)}", "export the model again"
        ) from cause
    left = next((n for n in nodes_of(inlined.graph.node) if (n.domain, n.op_type) in defined), None)
    if left is not None:
        raise RefusedModelError(
            f"function {left.op_type!r} was written for another opset than the model",
            "export the model again, or save it with onnx.inliner.inline_local_functions",
        )
    del inlined.functions[:]
    return inlined


def nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Every node, those of the graphs inside nodes included."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_of(attribute.g.node)
            for graph in attribute.graphs:
                yield from nodes_of(graph.node)


def _check_size(proto: onnx.ModelProto) -> None:
    """Count depth and nodes of every function from the innermost out, without following a call twice."""
    calls: dict[_Key, list[_Key]] = {}
    for function in proto.functions:  # several may share a name: overloads
        calls.setdefault((function.domain, function.name), []).extend(_calls(function.node))
    sizes: dict[_Key, tuple[int, int]] = {}  # depth and nodes
    waiting = set(calls)
    while waiting:
        ready = [key for key in waiting if not any(call in waiting for call in calls[key])]
        if not ready:
            raise RefusedModelError(f"function {min(waiting)[1]!r} calls itself", "export the model again")
        for key in ready:
            sizes[key] = _size(calls[key], sizes)
        waiting.difference_update(ready)
    _size(_calls(proto.graph.node), sizes)


def _calls(nodes: Iterable[onnx.NodeProto]) -> list[_Key]:
    return [(node.domain, node.op_type) for node in nodes_of(nodes)]


def _size(calls: Iterable[_Key], sizes: dict[_Key, tuple[int, int]]) -> tuple[int, int]:
    called = [sizes.get(call, (0, 1)) for call in calls]
    depth, count = 1 + max((d for d, _ in called), default=0), sum(n for _, n in called)
    if depth > DEEPEST:
        raise RefusedModelError(
            f"functions call functions more than {DEEPEST} deep", "save the model with them put in place"
        )
    if count > MOST_NODES:
        raise RefusedModelError(
            f"has more than {MOST_NODES} nodes once its functions are put in place, expected a vision model",
            "export the model again, without functions that call each other",
        )
    return depth, count
