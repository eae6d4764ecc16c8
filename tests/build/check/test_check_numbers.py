"""Numbers that are none, and what training left behind: named, where they do harm, and only there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_sdk_tools.check.report import CheckReport
from tests.support import models as tiny
from tests.support.reports import SIZE, only, report_on


def _conv(weight: np.ndarray) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["y"]),
    ]
    return tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [1, weight.shape[0], 1, 1]}, {"w": weight})


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
        (-np.inf, "infinite-weight", "weight 'w' of Conv: 3 of its {} values are infinite"),
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
    weight = _with(np.nan, 2, 64).astype(element)
    name = helper.np_dtype_to_tensor_dtype(np.dtype(element))
    nodes = [
        helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["images", "f"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["y"]),
    ]
    model = tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [1, 64, 1, 1]}, {"w": weight})
    assert model.graph.initializer[0].data_type == name
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
    nodes = [
        helper.make_node("Clip", ["images", "", "infinity"], ["c"]),
        helper.make_node("Add", ["c", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["s"], axis=3),
        helper.make_node("Greater", ["s", "half"], ["g"]),
        helper.make_node("Where", ["g", "minus_infinity", "s"], ["w"]),
        helper.make_node("Max", ["w", "minus_infinity"], ["m"]),
        helper.make_node("GlobalMaxPool", ["m"], ["y"]),
    ]
    weights = {
        "infinity": np.array(np.inf, np.float32),
        "minus_infinity": np.array(-np.inf, np.float32),
        "half": np.array(0.5, np.float32),
        "mask": mask,
    }
    report = report_on(tmp_path, tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [1, 3, 1, 1]}, weights))
    assert report.findings == ()


def _batch_normalization(variance: list[float], **attributes: int) -> onnx.ModelProto:
    ones = np.ones(3, np.float32)
    weights = {"s": ones, "b": ones, "m": ones, "v": np.array(variance, np.float32)}
    node = helper.make_node("BatchNormalization", ["images", "s", "b", "m", "v"], ["y"], name="bn", **attributes)
    return tiny.model([node], [1, 3, SIZE, SIZE], {"y": [1, 3, SIZE, SIZE]}, weights)


def test_a_variance_below_zero(tmp_path: Path) -> None:
    assert (
        "'v' of BatchNormalization goes down to -2"
        in only(report_on(tmp_path, _batch_normalization([1, -2, 3])), "variance").what
    )
    assert report_on(tmp_path, _batch_normalization([1, 0, 3])).passed


def _dropout(mode: bool | None) -> onnx.ModelProto:
    inputs = ["images", "ratio", "mode"] if mode is not None else ["images", "ratio"]
    weights = {"ratio": np.array(0.5, np.float32), **({"mode": np.array(mode)} if mode is not None else {})}
    node = helper.make_node("Dropout", inputs, ["y"], name="drop")
    return tiny.model([node], [1, 3, SIZE, SIZE], {"y": [1, 3, SIZE, SIZE]}, weights)


def _dropout_by_constant() -> onnx.ModelProto:
    model = _dropout(True)
    value = helper.make_tensor("mode", TensorProto.BOOL, [], [True])
    del model.graph.initializer[1]
    model.graph.node.insert(0, helper.make_node("Constant", [], ["mode"], value=value))
    return model


def _dropout_by_text() -> onnx.ModelProto:
    model = _dropout(True)
    model.graph.initializer[1].CopyFrom(TensorProto(name="mode", data_type=TensorProto.STRING))
    return model


def _random() -> onnx.ModelProto:
    nodes = [
        helper.make_node("RandomNormalLike", ["images"], ["n"], name="noise"),
        helper.make_node("Add", ["images", "n"], ["y"]),
    ]
    return tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [1, 3, SIZE, SIZE]})


@pytest.mark.parametrize(
    ("model", "where", "expected"),
    [
        (_dropout(True), "drop", "node 'drop' (Dropout) drops values at random"),
        (_dropout_by_constant(), "drop", "node 'drop' (Dropout) drops values at random"),
        (_dropout_by_text(), "drop", "node 'drop' (Dropout) drops values at random"),
        (_batch_normalization([1, 1, 1], training_mode=1), "bn", "node 'bn' (BatchNormalization) is in training mode"),
        (_random(), "noise", "node 'noise' (RandomNormalLike) draws random numbers"),
    ],
    ids=["dropout", "dropout by constant", "dropout by text", "batch normalization", "random"],
)
def test_what_training_left_behind(tmp_path: Path, model: onnx.ModelProto, where: str, expected: str) -> None:
    report = report_on(tmp_path, model)
    finding = only(report, "training")
    assert (finding.severity, finding.where) == ("error", where)
    assert finding.what.startswith(expected)
    assert finding.next_step.startswith("export it")


@pytest.mark.parametrize("mode", [None, False])
def test_a_dropout_that_does_nothing_is_fine(tmp_path: Path, mode: bool | None) -> None:
    assert report_on(tmp_path, _dropout(mode)).findings == ()


def test_instructions_for_training_are_left_out(tmp_path: Path) -> None:
    model = _dropout(None)
    model.training_info.add().algorithm.name = "sgd"
    report = report_on(tmp_path, model)
    assert report.passed
    assert only(report, "training").severity == "note"


def test_everything_is_found_at_once(tmp_path: Path) -> None:
    model = _conv(_with(np.nan, 1, 4))
    model.graph.node.insert(0, helper.make_node("Dropout", ["images", "", "on"], ["d"], name="drop"))
    model.graph.node.insert(1, helper.make_node("RandomUniformLike", ["d"], ["r"], name="noise"))
    model.graph.node.insert(2, helper.make_node("Frobnicate", ["r"], ["f"], domain="com.example"))
    model.graph.node[3].input[0] = "f"
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "on"))
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    model.opset_import[0].version = 26
    report: CheckReport = report_on(tmp_path, model)
    assert [f.rule for f in report.of("error")] == ["opset", "training", "training", "nan-weight", "custom-operator"]
    model.opset_import[0].version = 17
    assert [f.rule for f in report_on(tmp_path, model).of("error")] == [
        "training",
        "training",
        "nan-weight",
        "custom-operator",
    ]


def test_numbers_are_looked_at_beside_other_errors(tmp_path: Path) -> None:
    """What the runtime refuses shows behind weights that are NaN, and these in a model of too old an opset."""
    model = _conv(_with(np.nan, 1, 4))
    model.graph.node.insert(0, helper.make_node("Slice", ["images", "zero", "two", "one"], ["less"], name="cut"))
    model.graph.node[1].input[0] = "less"
    for name, value in (("zero", 0), ("two", 2), ("one", 1)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    assert [f.rule for f in report_on(tmp_path, model).of("error")] == ["nan-weight", "run"]
    model.opset_import[0].version = 6
    assert [f.rule for f in report_on(tmp_path, model).of("error")] == ["opset", "nan-weight"]
