"""Inputs, outputs and everything between them: fixed, or named with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support import models as tiny
from tests.support.reports import SIZE, examined, only, report_on


def _pooled(input_shape: list[int | str]) -> onnx.ModelProto:
    node = helper.make_node("GlobalAveragePool", ["images"], ["y"])
    return tiny.model([node], input_shape, {"y": ["n", 3, "h", "w"]})


def _unknown_rank() -> onnx.ModelProto:
    model = _pooled([1, 3, SIZE, SIZE])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: _pooled([1, 3, SIZE, SIZE]),
        lambda: _pooled(["batch", 3, SIZE, SIZE]),
        lambda: _pooled(["batch", 3, "height", "width"]),
        lambda: _pooled(["a", "b", "c", "d"]),
        _unknown_rank,
    ],
)
def test_free_sides_are_fixed_from_model_toml(tmp_path: Path, make: Callable[[], onnx.ModelProto]) -> None:
    found = examined(tmp_path, make())
    assert found.report.passed, found.report.findings
    assert found.report.input is not None
    assert (found.report.input.name, found.report.input.type) == ("images", "float")
    assert found.report.input.shape == (1, 3, SIZE, SIZE)
    proto = onnx.ModelProto.FromString(found.skeleton)
    sides = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*proto.graph.input, *proto.graph.output)]
    assert sides == [[1, 3, SIZE, SIZE], [1, 3, 1, 1]]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([2, 3, SIZE, SIZE], "has shape 2x3x8x8, model.toml says 1x3x8x8 (NCHW, RGB); frames come one at a time"),
        (
            [1, 3, 16, 16],
            "has shape 1x3x16x16, model.toml says 1x3x8x8 (NCHW, RGB); set size_wh = [16, 16] under [input]",
        ),
        (["n", 3, 32, 16], "has shape nx3x32x16, model.toml says 1x3x8x8 (NCHW, RGB); set size_wh = [16, 32] under"),
        (["n", 16, "w", 3], '; set size_wh = [8, 16] and layout = "NHWC" under [input] in model.toml'),
        ([1, 3, 4, 4], "; correct input.size_wh, input.color or input.layout in model.toml"),
        ([2, 3, 16, 16], "; correct input.size_wh, input.color or input.layout in model.toml"),
        ([1, SIZE, SIZE, 3], 'has shape 1x8x8x3, model.toml says 1x3x8x8 (NCHW, RGB); set layout = "NHWC" under'),
        ([1, 1, SIZE, SIZE], "has shape 1x1x8x8"),
        (["n", 3, SIZE], "has shape nx3x8"),
        ([], "has shape scalar"),
    ],
)
def test_an_image_of_another_shape(tmp_path: Path, shape: list[int | str], expected: str) -> None:
    report = report_on(tmp_path, _pooled(shape))
    assert only(report, "input").what.startswith("input 'images' has shape ")
    assert expected in only(report, "input").line
    assert not report.passed


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ([TensorProto.UINT8], "input 'images' is UINT8, expected FLOAT"),
        ([TensorProto.FLOAT16], "input 'images' is FLOAT16, expected FLOAT"),
        ([77], "input 'images' is of unknown type 77"),
        ([TensorProto.FLOAT, TensorProto.INT64], "has 2 inputs, expected one image input (images, more)"),
        ([], "has 0 inputs, expected one image input"),
    ],
)
def test_inputs_that_are_no_image(tmp_path: Path, elements: list[int], expected: str) -> None:
    model = _pooled([1, 3, SIZE, SIZE])
    del model.graph.input[:]
    names = ("images", "more")
    for name, element in zip(names, elements, strict=False):
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, SIZE, SIZE]))
        model.graph.input[-1].type.tensor_type.elem_type = element
    assert expected in only(report_on(tmp_path, model), "input").what


def _suppressed() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Reshape", ["images", "boxes_shape"], ["boxes"]),
        helper.make_node("Reshape", ["images", "scores_shape"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["chosen"], name="suppress"),
        helper.make_node("Cast", ["chosen"], ["y"], to=TensorProto.FLOAT),
    ]
    weights = {
        "boxes_shape": np.array([1, 48, 4], np.int64),
        "scores_shape": np.array([1, 4, 48], np.int64),
        "most": np.array([10], np.int64),
    }
    return tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": ["detections", 3]}, weights)


def _nonzero() -> onnx.ModelProto:
    nodes = [
        helper.make_node("NonZero", ["images"], ["found"], name="find"),
        helper.make_node("Cast", ["found"], ["y"], to=TensorProto.FLOAT),
    ]
    return tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [4, "found"]})


@pytest.mark.parametrize(
    ("make", "operator", "dimension", "step"),
    [
        (_suppressed, "'suppress' (NonMaxSuppression)", "dimension 0", "nms=False"),
        (_nonzero, "'find' (NonZero)", "dimension 1", "cut the model before that node"),
    ],
)
def test_an_output_whose_shape_depends_on_the_picture(
    tmp_path: Path, make: Callable[[], onnx.ModelProto], operator: str, dimension: str, step: str
) -> None:
    finding = only(report_on(tmp_path, make()), "dynamic")
    assert (finding.severity, finding.where) == ("error", "y")
    assert operator in finding.what
    assert dimension in finding.what
    assert step in finding.next_step


def test_a_shape_that_depends_on_the_picture_inside_is_fine(tmp_path: Path) -> None:
    model = _nonzero()
    model.graph.node.append(helper.make_node("ReduceSum", ["y"], ["sum"], keepdims=0))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("sum", TensorProto.FLOAT, []))
    assert report_on(tmp_path, model).passed


def test_a_batch_that_runs_through_shape_arithmetic(tmp_path: Path) -> None:
    """As exporters write a flatten of a free batch."""
    nodes = [
        helper.make_node("Shape", ["images"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["images", "flat"], ["y"]),
    ]
    weights = {"first": np.array([0], np.int64), "rest": np.array([-1], np.int64)}
    report = report_on(tmp_path, tiny.model(nodes, ["n", 3, "h", "w"], {"y": ["n", "all"]}, weights))
    assert report.passed, report.findings
    assert report.outputs[0].shape == (1, 3 * SIZE * SIZE)


def test_shape_arithmetic_is_followed_where_nothing_is_run(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["images"], ["shape"]),
        helper.make_node("Gather", ["shape", "side"], ["length"]),
        helper.make_node("Concat", ["length", "length"], ["square"], axis=0),
        helper.make_node("ConstantOfShape", ["square"], ["zeros"]),
        helper.make_node("RandomNormalLike", ["zeros"], ["y"]),
    ]
    model = tiny.model(nodes, [1, 3, "h", "w"], {"y": ["a", "b"]}, {"side": np.array([2], np.int64)})
    report = report_on(tmp_path, model)
    assert [finding.rule for finding in report.findings] == ["training"]
    assert report.outputs[0].shape == (SIZE, SIZE)


def test_every_contradiction_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["images", "five"], ["a"], name="five"),
        helper.make_node("MatMul", ["images", "flat"], ["b"], name="product"),
        helper.make_node("Mul", ["images", "five"], ["y"], name="again"),
    ]
    weights = {"five": np.ones((5, 1, 1), np.float32), "flat": np.ones((3, 3), np.float32)}
    report = report_on(tmp_path, tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [1, 3, SIZE, SIZE]}, weights))
    assert {f.where for f in report.of("error") if f.rule == "shape"} == {"five", "product", "again"}
    assert all("Error" not in finding.what for finding in report.findings)


def test_what_only_onnxs_checker_sees(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["later"], ["y"]), helper.make_node("Abs", ["images"], ["later"])]
    model = tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [1, 3, SIZE, SIZE]})
    assert "topologically sorted" in only(report_on(tmp_path, model), "onnx").what


def test_a_failure_at_run_time_is_named(tmp_path: Path) -> None:
    """The index comes out of arithmetic that no inference follows."""
    nodes = [
        helper.make_node("Cast", ["nine"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["images", "index"], ["g"], axis=1, name="beyond"),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    model = tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [1, 1, SIZE, SIZE]}, {"nine": np.array([9], np.float32)})
    finding = only(report_on(tmp_path, model), "run")
    assert finding.severity == "error"
    assert "failed to run it" in finding.what or "cannot load it" in finding.what
    assert "beyond" in finding.what or "Gather" in finding.what


@pytest.mark.parametrize(
    ("shape", "expected"),
    [([25, 1000, 1000, 1000], "100 GB, expected 1 at most"), ([500, 1000, 1000], "2 GB, expected 1 at most")],
)
def test_a_tensor_that_no_device_holds(tmp_path: Path, shape: list[int], expected: str) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["big"], name="grow"),
        helper.make_node("ReduceMax", ["big"], ["m"], keepdims=0),
        helper.make_node("Add", ["images", "m"], ["y"]),
    ]
    model = tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [1, 3, SIZE, SIZE]}, {"shape": np.array(shape, np.int64)})
    finding = only(report_on(tmp_path, model), "size")
    assert finding.what.startswith("tensor 'big' of node 'grow' (ConstantOfShape)")
    assert expected in finding.what


def test_functions_are_put_in_place(tmp_path: Path) -> None:
    inner = helper.make_function(
        "local", "inner", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], [helper.make_opsetid("", 17)]
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    outer = helper.make_function(
        "local", "outer", ["x"], ["y"], [helper.make_node("inner", ["x"], ["y"], domain="local")], imports
    )
    model = tiny.model(
        [helper.make_node("outer", ["images"], ["y"], domain="local")], [1, 3, SIZE, SIZE], {"y": [1, 3, SIZE, SIZE]}
    )
    model.functions.extend([inner, outer])
    model.opset_import.append(helper.make_opsetid("local", 1))
    found = examined(tmp_path, model)
    assert found.report.passed, found.report.findings
    proto = onnx.ModelProto.FromString(found.skeleton)
    assert [node.op_type for node in proto.graph.node] == ["Relu"]
    assert not proto.functions
    model.functions[0].opset_import[0].version = 12
    assert "was written for another opset" in only(report_on(tmp_path, model), "file").what


def test_real_weights_where_shapes_follow_from_values(tmp_path: Path) -> None:
    """With weights of zeros nothing would be found, and the largest of nothing is an error."""
    nodes = [
        helper.make_node("Flatten", ["images"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["g"]),
        helper.make_node("NonZero", ["g"], ["found"]),
        helper.make_node("Cast", ["found"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("TopK", ["c", "five"], ["y", "i"], axis=1),
    ]
    bias = np.ones(2000, np.float32)  # large enough to be cut out
    weights = {"w": np.ones((192, 2000), np.float32), "b": bias, "five": np.array([5], np.int64)}
    assert report_on(tmp_path, tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [2, 5]}, weights)).passed
    weights["b"] = np.zeros(2000, np.float32)
    report = report_on(tmp_path, tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [2, 5]}, weights))
    assert "TopK" in only(report, "run").what


def test_sparse_weights_are_refused(tmp_path: Path) -> None:
    model = _pooled([1, 3, SIZE, SIZE])
    sparse = model.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(helper.make_tensor("w_indices", TensorProto.INT64, [1], [2]))
    assert "holds sparse weights" in only(report_on(tmp_path, model), "file").what


def test_a_list_of_findings_has_an_end(tmp_path: Path) -> None:
    nodes = [helper.make_node("RandomNormalLike", [f"x{i}" if i else "images"], [f"x{i + 1}"]) for i in range(150)]
    report = report_on(tmp_path, tiny.model(nodes, [1, 3, SIZE, SIZE], {"x150": [1, 3, SIZE, SIZE]}))
    assert len(report.findings) == 101
    assert only(report, "more").what == "50 more findings are left out"
