"""Weights that are no numbers, what training left behind, and what a model costs, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_sdk_tools.check.costs import node_macs
from edge_sdk_tools.graph.index import Value
from tests.support.reports import SIZE, network, only, report_on


def _conv(weight: np.ndarray) -> onnx.ModelProto:
    text = "c = Conv<pads = [1, 1, 1, 1]>(images, w) y = GlobalAveragePool(c)"
    return network(text, {"y": [1, weight.shape[0], 1, 1]}, {"w": weight})


def _with(value: float, count: int, filters: int) -> np.ndarray:
    weight = np.ones((filters, 3, 3, 3), np.float32)
    weight.reshape(-1)[5 : 5 + count] = value
    return weight


@pytest.mark.parametrize("filters", [4, 64])  # small ones stay in the skeleton, large ones are cut out
@pytest.mark.parametrize(
    ("value", "rule", "expected"),
    [
        (np.nan, "nan-weight", "weight 'w': 3 of its {} values are NaN"),
        (np.inf, "infinite-weight", "weight 'w' of Conv: 3 of its {} values are infinite"),
    ],
)
def test_weights_that_are_no_numbers(tmp_path: Path, filters: int, value: float, rule: str, expected: str) -> None:
    report = report_on(tmp_path, _conv(_with(value, 3, filters)))
    finding = only(report, rule)
    assert (finding.severity, finding.where) == ("error", "w")
    assert finding.what == expected.format(filters * 27)
    assert finding.next_step


@pytest.mark.parametrize("element", [np.float16, np.float64])
def test_of_other_floating_point_types_too(tmp_path: Path, element: type[np.generic]) -> None:
    weights = {"w": _with(np.nan, 2, 64).astype(element)}
    model = network("f = Cast<to = 1>(w) c = Conv(images, f) y = GlobalAveragePool(c)", {"y": [1, 64, 1, 1]}, weights)
    assert "2 of its" in only(report_on(tmp_path, model), "nan-weight").what


def test_a_constant_node_is_a_weight_as_well(tmp_path: Path) -> None:
    value = numpy_helper.from_array(_with(np.nan, 1, 4), "value")
    model = _conv(np.ones((4, 3, 3, 3), np.float32))
    del model.graph.initializer[:]
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=value))
    assert only(report_on(tmp_path, model), "nan-weight").where == "w"


def test_infinities_that_are_meant(tmp_path: Path) -> None:
    """Bounds of Clip, a mask that is added before Softmax, what Where fills in, the start of a maximum."""
    mask = np.zeros((1, 3, SIZE, SIZE), np.float32)
    mask[..., 4:] = -np.inf
    text = """a = Clip(images, , most) b = Add(a, mask) c = Softmax<axis = 3>(b) d = Greater(c, half)
        e = Where(d, least, c) f = Max(e, least) y = GlobalMaxPool(f)"""
    weights = {"most": np.float32(np.inf), "least": np.float32(-np.inf), "half": np.float32(0.5), "mask": mask}
    model = network(text, {"y": [1, 3, 1, 1]}, {name: np.asarray(value) for name, value in weights.items()})
    assert report_on(tmp_path, model).findings == ()


def _normalized(variance: list[float], attributes: str = "") -> onnx.ModelProto:
    ones = np.ones(3, np.float32)
    weights = {"s": ones, "b": ones, "m": ones, "v": np.array(variance, np.float32)}
    return network(f"y = BatchNormalization{attributes}(images, s, b, m, v)", weights=weights)


def test_a_variance_below_zero(tmp_path: Path) -> None:
    finding = only(report_on(tmp_path, _normalized([1, -2, 3])), "variance")
    assert "'v' of BatchNormalization goes down to -2" in finding.what
    assert report_on(tmp_path, _normalized([1, 0, 3])).passed


def _dropout(mode: str, constant: str = "") -> onnx.ModelProto:
    weights = {"half": np.array(0.5, np.float32), "on": np.array(True), "off": np.array(False)}
    model = network(f"{constant} y = Dropout(images, half{mode})", weights=weights)
    if "text" in mode:
        model.graph.initializer.add(name="text", data_type=TensorProto.STRING)
    return model


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (_dropout(", on"), "node 'y' (Dropout) drops values at random"),
        (_dropout(", yes", "yes = Constant<value = bool {1}>()"), "node 'y' (Dropout) drops values at random"),
        (_dropout(", text"), "node 'y' (Dropout) drops values at random"),
        (_normalized([1, 1, 1], "<training_mode = 1>"), "node 'y' (BatchNormalization) is in training mode"),
        (network("a = RandomNormalLike(images) y = Add(images, a)"), "node 'a' (RandomNormalLike) draws random num"),
    ],
    ids=["dropout", "dropout by constant", "dropout by text", "batch normalization", "random"],
)
def test_what_training_left_behind(tmp_path: Path, model: onnx.ModelProto, expected: str) -> None:
    finding = only(report_on(tmp_path, model), "training")
    assert finding.severity == "error"
    assert finding.what.startswith(expected)
    assert finding.next_step.startswith("export it")


@pytest.mark.parametrize("mode", ["", ", off"])
def test_a_dropout_that_does_nothing_is_fine(tmp_path: Path, mode: str) -> None:
    model = _dropout(mode)
    model.training_info.add().algorithm.name = "sgd"
    [note] = report_on(tmp_path, model).findings
    assert (note.rule, note.severity) == ("training", "note")  # of the instructions for training


def test_everything_is_found_at_once(tmp_path: Path) -> None:
    text = """a = Dropout(images, , on) b = RandomUniformLike(a) c = com.example.Frobnicate(b) d = Conv(c, w)
        y = GlobalAveragePool(d)"""
    model = network(text, {"y": [1, 4, 1, 1]}, {"on": np.array(True), "w": _with(np.nan, 1, 4)}, opset=26)
    found = ["opset", "training", "training", "nan-weight", "custom-operator"]
    assert [f.rule for f in report_on(tmp_path, model).of("error")] == found
    model.opset_import[0].version = 17
    assert [f.rule for f in report_on(tmp_path, model).of("error")] == found[1:]


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
        ("QLinearConv", [(1, 3, 8, 8), (), (), (16, 3, 3, 3)], (1, 16, 5, 5), {}, 16 * 5 * 5 * 27),
        # every one of 3x8x8 inputs goes through 16x2x2
        ("ConvTranspose", [(1, 3, 8, 8), (3, 16, 2, 2)], (1, 16, 16, 16), {}, 3 * 8 * 8 * 16 * 4),
        ("MatMul", [(2, 7, 5), (5, 4)], (2, 7, 4), {}, 2 * 7 * 4 * 5),
        ("Gemm", [(2, 5), (5, 4), (4,)], (2, 4), {}, 2 * 4 * 5),
        ("Gemm", [(5, 2), (5, 4)], (2, 4), {"transA": 1}, 2 * 4 * 5),
        ("Relu", [(1, 3, 8, 8)], (1, 3, 8, 8), {}, 0),
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


def test_the_peak_is_what_lives_at_once(tmp_path: Path) -> None:
    text = "a = Conv(images, w1) b = Conv(a, w2) c = Relu(b) y = Concat<axis = 1>(a, c)"
    weights = {"w1": np.ones((4, 3, 1, 1), np.float32), "w2": np.ones((2, 4, 1, 1), np.float32)}
    report = report_on(tmp_path, network(text, {"y": [1, 6, SIZE, SIZE]}, weights))
    costs, area = report.costs, SIZE * SIZE
    assert costs is not None
    # At the last node a (4), c (2) and y (6); images and b are free by then.
    assert (costs.peak_activation_bytes, costs.peak_node) == ((4 + 2 + 6) * area * 4, "y")
    assert costs.macs == area * (4 * 3 + 2 * 4)
    assert (costs.parameters, costs.weight_bytes) == (12 + 8, 80)
    assert costs.unknown_nodes == 0
    operators = [(use.name, use.nodes, use.macs) for use in report.operators]
    assert operators == [("Conv", 2, area * 20), ("Concat", 1, 0), ("Relu", 1, 0)]


def test_bounds_axes_and_shapes_are_no_parameters(tmp_path: Path) -> None:
    text = """low = Constant<value = float {0}>() gain = Constant<value = float[3, 1, 1] {1, 2, 3}>()
        a = Clip(images, low) b = Mul(a, gain) y = Reshape(b, shape)"""
    costs = report_on(tmp_path, network(text, {"y": [1, 192]}, {"shape": np.array([1, -1])})).costs
    assert costs is not None
    assert (costs.parameters, costs.weight_bytes) == (3, 12)


def test_what_is_not_counted_is_said(tmp_path: Path) -> None:
    report = report_on(tmp_path, network('y = Einsum<equation = "nchw,nchw->nchw">(images, images)'))
    assert report.passed
    assert only(report, "costs").what == "the multiply-accumulates of Einsum are not counted"


def test_more_than_the_board_has(tmp_path: Path) -> None:
    text = "a = Tile(images, times) b = Neg(a) c = Add(a, b) y = ReduceMean<axes = [2, 3]>(c)"
    model = network(text, {"y": [1, 3, 1, 1]}, {"times": np.array([1, 1, 1000, 1000])})
    finding = only(report_on(tmp_path, model, target="raspberry_pi_zero_2w"), "memory")
    assert finding.where == "c"
    assert finding.what == "weights and activations take 549 MiB even in INT8, raspberry_pi_zero_2w has 512"
