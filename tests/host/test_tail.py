"""The decoding tail is found in every family of heads, whatever its nodes are called and wherever they stand."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx
import pytest

from edge_sdk_tools.quantize import decoding_tail, simplify
from tests.host import heads
from tests.host.heads import Head

FAMILIES: dict[str, Callable[[], tuple[Head, list[str]]]] = {
    "yolov5": heads.yolov5,
    "yolov7": heads.yolov7_for_suppression,
    "yolov8": heads.yolov8,
    "yolov8 by a product with a column": partial(heads.yolov8, "column"),
    "yolov8 by a product with a vector": partial(heads.yolov8, "vector"),
    "yolox": heads.yolox,
    "nanodet": heads.nanodet,
    "nanodet-plus": heads.nanodet_plus,
    "ssd": heads.ssd,
    "ssd, decoded": partial(heads.ssd, decoded=True),
    "ssd, logits": partial(heads.ssd, logits=True),
    "centerface": heads.centerface,
    "one class": heads.one_class_map,
}


def _scrambled(proto: onnx.ModelProto, seed: int) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The same graph with other names, nodes in another valid order, outputs shuffled; and each node's old name."""
    rng = random.Random(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    graph = copy.graph
    tensors = {name for node in graph.node for name in (*node.input, *node.output)}
    called = dict(zip(sorted(tensors), rng.sample([f"t{i}" for i in range(len(tensors))], len(tensors)), strict=True))
    numbers = rng.sample(range(len(graph.node)), len(graph.node))
    before = {f"n{number}": node.name for number, node in zip(numbers, graph.node, strict=True)}
    for number, node in zip(numbers, graph.node, strict=True):
        node.name = f"n{number}"
        node.input[:] = [called[name] for name in node.input]
        node.output[:] = [called[name] for name in node.output]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = called[value.name]
    del graph.value_info[:]
    waiting, known = list(graph.node), {value.name for value in (*graph.input, *graph.initializer)}
    ordered: list[onnx.NodeProto] = []
    while waiting:
        node = rng.choice([node for node in waiting if known.issuperset(node.input)])
        waiting.remove(node)
        ordered.append(node)
        known.update(node.output)
    outputs = rng.sample(list(graph.output), len(graph.output))
    ordered, outputs = [_copy(node) for node in ordered], [_copy(value) for value in outputs]
    del graph.node[:], graph.output[:]
    graph.node.extend(ordered)
    graph.output.extend(outputs)
    onnx.checker.check_model(copy, full_check=True)
    return copy, before


def _copy(message: onnx.NodeProto | onnx.ValueInfoProto) -> onnx.NodeProto | onnx.ValueInfoProto:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tail_is_what_decodes(family: str) -> None:
    head, outputs = FAMILIES[family]()
    assert head.tail
    assert list(decoding_tail(head.model(*outputs))) == head.tail


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_order_do_not_matter(family: str, seed: int) -> None:
    head, outputs = FAMILIES[family]()
    scrambled, before = _scrambled(head.model(*outputs), seed)
    assert not set(before).intersection(before.values())
    assert {before[name] for name in decoding_tail(scrambled)} == set(head.tail)


def test_scrambling_moves_nodes_and_outputs() -> None:
    head, outputs = heads.nanodet()
    proto = head.model(*outputs)
    orders, shuffles = set(), set()
    for seed in range(5):
        scrambled, before = _scrambled(proto, seed)
        orders.add(tuple(before[node.name] for node in scrambled.graph.node))
        shuffles.add(tuple(str(value.type) for value in scrambled.graph.output))
    assert len(orders) > 3
    assert len(shuffles) > 3


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_is_left_to_the_integers(tmp_path: Path, family: str) -> None:
    """Behind ONNX Runtime's simplification too, under whatever names it leaves."""
    head, outputs = FAMILIES[family]()
    scrambled, _ = _scrambled(head.model(*outputs), 1)
    simplified = simplify(scrambled, tmp_path)
    layers = [node.name for node in scrambled.graph.node if node.op_type == "Conv"]
    tail = {node.op_type: node.name for node in simplified.proto.graph.node if node.name in simplified.tail}
    decoding = {"Sigmoid", "Softmax", "Concat", "Transpose", "Reshape", "Split"}
    integers = {n.op_type for n in simplified.proto.graph.node if n.name not in simplified.tail}
    assert len(simplified.macs) == len(layers) - ("Conv" in tail)
    assert integers <= {"Conv", "Sigmoid", "Mul"}
    assert decoding.intersection(tail)
