"""Parameters, multiply-accumulates and memory, against figures worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_sdk_tools.check.costs import check_memory, measure, node_macs
from edge_sdk_tools.check.values import Value
from tests.support import models as tiny
from tests.support.reports import SIZE, only, report_on


def _macs(operator: str, *shapes: tuple[int, ...], output: tuple[int, ...], **attributes: object) -> int | None:
    names = [f"x{index}" for index in range(len(shapes))]
    node = helper.make_node(operator, names, ["y"], **attributes)
    values = {name: Value("float", shape) for name, shape in (*zip(names, shapes, strict=True), ("y", output))}
    return node_macs(node, values)


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "attributes", "expected"),
    [
        # output 16x5x5, each from 3x3x3
        ("Conv", [(1, 3, 8, 8), (16, 3, 3, 3)], (1, 16, 5, 5), {}, 16 * 5 * 5 * 27),
        # depthwise: one channel a filter
        ("Conv", [(1, 8, 6, 6), (8, 1, 3, 3), (8,)], (1, 8, 6, 6), {"group": 8}, 8 * 6 * 6 * 9),
        ("ConvInteger", [(1, 3, 8, 8), (16, 3, 3, 3)], (1, 16, 5, 5), {}, 16 * 5 * 5 * 27),
        ("QLinearConv", [(1, 3, 8, 8), (), (), (16, 3, 3, 3)], (1, 16, 5, 5), {}, 16 * 5 * 5 * 27),
        # every one of 3x8x8 inputs goes through 16x2x2
        ("ConvTranspose", [(1, 3, 8, 8), (3, 16, 2, 2)], (1, 16, 16, 16), {}, 3 * 8 * 8 * 16 * 4),
        ("MatMul", [(2, 7, 5), (5, 4)], (2, 7, 4), {}, 2 * 7 * 4 * 5),
        ("MatMul", [(5,), (5, 4)], (4,), {}, 4 * 5),
        ("QLinearMatMul", [(7, 5), (), (), (5, 4)], (7, 4), {}, 7 * 4 * 5),
        ("Gemm", [(2, 5), (5, 4), (4,)], (2, 4), {}, 2 * 4 * 5),
        ("Gemm", [(5, 2), (5, 4)], (2, 4), {"transA": 1}, 2 * 4 * 5),
        ("Gemm", [(2, 5), (4, 5)], (2, 4), {"transB": 1}, 2 * 4 * 5),
        ("Relu", [(1, 3, 8, 8)], (1, 3, 8, 8), {}, 0),
        ("MaxPool", [(1, 3, 8, 8)], (1, 3, 4, 4), {"kernel_shape": [2, 2]}, 0),
    ],
)
def test_multiply_accumulates(
    operator: str,
    inputs: list[tuple[int, ...]],
    output: tuple[int, ...],
    attributes: dict[str, object],
    expected: int,
) -> None:
    assert _macs(operator, *inputs, output=output, **attributes) == expected


def test_an_unknown_shape_is_no_zero() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    known = {"x": Value("float", (1, 3, 8, 8)), "w": Value("float", (16, 3, 3, 3))}
    assert node_macs(node, {**known, "y": Value("float", (1, 16, None, 5))}) is None
    assert node_macs(node, known) is None


def _chain() -> onnx.ModelProto:
    """Image 3x8x8, a 4x8x8 that lives to the end, a 2x8x8 between."""
    nodes = [
        helper.make_node("Conv", ["images", "w1"], ["a"], name="first"),
        helper.make_node("Conv", ["a", "w2"], ["b"], name="second"),
        helper.make_node("Relu", ["b"], ["r"], name="third"),
        helper.make_node("Concat", ["a", "r"], ["y"], axis=1, name="last"),
    ]
    weights = {"w1": np.ones((4, 3, 1, 1), np.float32), "w2": np.ones((2, 4, 1, 1), np.float32)}
    return tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [1, 6, SIZE, SIZE]}, weights)


def test_the_peak_is_what_lives_at_once(tmp_path: Path) -> None:
    costs = report_on(tmp_path, _chain()).costs
    assert costs is not None
    area = SIZE * SIZE * 4
    # At the last node a (4), r (2) and y (6); images and b are free by then.
    assert (costs.peak_activation_bytes, costs.peak_node) == ((4 + 2 + 6) * area, "last")
    assert costs.macs == SIZE * SIZE * (4 * 3 + 2 * 4)
    assert (costs.parameters, costs.weight_bytes) == (12 + 8, 80)
    assert costs.unknown_nodes == 0


def test_a_tensor_is_free_after_its_last_use() -> None:
    proto = _chain()
    del proto.graph.node[3]
    values = {name: Value("float", (1, channels, 8, 8)) for name, channels in zip("abr", (4, 2, 2), strict=True)}
    values["images"] = Value("float", (1, 3, 8, 8))
    costs = measure(proto, [], values)
    assert (costs.peak_activation_bytes, costs.peak_node) == ((3 + 4) * 256, "first")


def test_bounds_axes_and_shapes_are_no_parameters(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["low"], value=helper.make_tensor("low", TensorProto.FLOAT, [], [0.0])),
        helper.make_node(
            "Constant", [], ["gain"], value=helper.make_tensor("gain", TensorProto.FLOAT, [3, 1, 1], [1, 2, 3])
        ),
        helper.make_node("Clip", ["images", "low"], ["c"]),
        helper.make_node("Mul", ["c", "gain"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["y"]),
    ]
    model = tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [1, 192]}, {"shape": np.array([1, -1], np.int64)})
    costs = report_on(tmp_path, model).costs
    assert costs is not None
    assert (costs.parameters, costs.weight_bytes) == (3, 12)


def test_large_weights_count_as_small_ones(tmp_path: Path) -> None:
    weights = {"w": np.ones((64, 3, 5, 5), np.float32), "b": np.ones(64, np.float32)}
    model = tiny.model(
        [helper.make_node("Conv", ["images", "w", "b"], ["y"])], [1, 3, SIZE, SIZE], {"y": [1, 64, 4, 4]}, weights
    )
    costs = report_on(tmp_path, model).costs
    assert costs is not None
    assert (costs.parameters, costs.weight_bytes) == (64 * 75 + 64, 4 * (64 * 75 + 64))
    assert costs.macs == 64 * 16 * 75


def test_operators_by_type(tmp_path: Path) -> None:
    uses = report_on(tmp_path, _chain()).operators
    assert [(u.name, u.nodes, u.macs) for u in uses] == [
        ("Conv", 2, SIZE * SIZE * 20),
        ("Concat", 1, 0),
        ("Relu", 1, 0),
    ]


def test_what_is_not_counted_is_said(tmp_path: Path) -> None:
    nodes = [helper.make_node("Einsum", ["images", "images"], ["y"], equation="nchw,nchw->nchw")]
    report = report_on(tmp_path, tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [1, 3, SIZE, SIZE]}))
    assert report.passed
    assert only(report, "costs").what == "the multiply-accumulates of Einsum are not counted"


def test_shapes_that_only_a_run_finds_are_counted(tmp_path: Path) -> None:
    """The shape comes out of floating-point arithmetic, which no inference follows."""
    nodes = [
        helper.make_node("Exp", ["powers"], ["e"]),
        helper.make_node("Round", ["e"], ["rounded"]),
        helper.make_node("Cast", ["rounded"], ["shape"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["images", "shape"], ["r"], name="reshape"),
        helper.make_node("Conv", ["r", "w"], ["y"]),
    ]
    weights = {"powers": np.log([1, 12, 4, 4]).astype(np.float32), "w": np.ones((5, 12, 1, 1), np.float32)}
    model = tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": ["a", "b", "c", "d"]}, weights)
    report = report_on(tmp_path, model)
    assert report.passed, report.findings
    assert report.outputs[0].shape == (1, 5, 4, 4)
    assert report.costs is not None
    assert (report.costs.macs, report.costs.unknown_nodes) == (5 * 16 * 12, 0)


def test_more_than_the_board_has(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Tile", ["images", "times"], ["t"], name="tile"),
        helper.make_node("ReduceMean", ["t"], ["y"], axes=[2, 3]),
    ]
    model = tiny.model(
        nodes, [1, 3, SIZE, SIZE], {"y": [1, 3, 1, 1]}, {"times": np.array([1, 1, 1000, 1000], np.int64)}
    )
    costs = report_on(tmp_path, model, target="raspberry_pi_zero_2w").costs
    assert costs is not None
    assert costs.peak_activation_bytes // 2**20 == 732
    assert check_memory(costs, 512, "board") == []  # a quarter of it fits
    [finding] = check_memory(costs, 180, "board")
    assert (finding.rule, finding.where) == ("memory", "tile")
    assert finding.what == "weights and activations take 183 MiB even in INT8, board has 180"
    assert check_memory(costs, None, "") == []
