"""The comparison of an import: which differences are rounding, and on which inputs they are looked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_sdk.errors import ModelError
from edge_sdk.model_spec import InputSpec
from edge_sdk_tools.dataset import ImageSet, find_images
from edge_sdk_tools.importing.comparison import Runner, compare, compare_model, measure_difference
from edge_sdk_tools.importing.global_pool import pool_means
from edge_sdk_tools.importing.observation import observe
from edge_sdk_tools.importing.probe import Probe, make_probes
from tests.support import models as tiny
from tests.support.projects import write_pictures

NONE = ImageSet(())
PROBE = Probe("made", lambda: np.zeros(1, np.float32))


def allowed(got: object, expected: object, dtype: type = np.float32) -> float | None:
    return measure_difference("y", PROBE, np.array(got, dtype), np.array(expected, dtype))[1]


@pytest.mark.parametrize(
    ("got", "expected", "passes"),
    [
        ([[1.0, 2.0]], [[1.0, 2.0]], True),
        ([[0.0, 9e-5]], [[0.0, 0.0]], True),
        ([[0.0, 2e-4]], [[0.0, 0.0]], False),
        ([[100.09, 0.0]], [[100.0, 0.0]], True),  # 1e-3 of 100
        ([[100.0, 0.09]], [[100.0, 0.0]], True),  # ... of the largest of the scores
        ([[100.2, 0.0]], [[100.0, 0.0]], False),
        ([[np.nan, 1.0]], [[np.nan, 1.0]], True),
        ([[np.inf, 1.0]], [[np.inf, 1.0]], True),
        ([[np.nan, 1.0]], [[0.0, 1.0]], False),
        ([[0.0, 1.0]], [[np.nan, 1.0]], False),
        ([[np.inf, 1.0]], [[-np.inf, 1.0]], False),
        ([], [], True),
    ],
)
def test_what_rounding_explains(got: object, expected: object, passes: bool) -> None:
    assert (allowed(got, expected) is None) is passes


@pytest.mark.parametrize("axis", [1, 2])
def test_scores_beside_boxes_are_measured_as_scores(axis: int) -> None:
    """YOLOv8's 1x(4+C)xN and YOLOv5's 1xNx(5+C): boxes in pixels and scores of 0-1 in one tensor."""
    boxes, scores = np.full((1, 4, 20), 600.0), np.full((1, 3, 20), 0.9)
    expected = np.concatenate([boxes, scores], axis=1)
    got = expected.copy()
    got[0, 5, 7] -= 0.1
    if axis == 2:
        got, expected = got.transpose(0, 2, 1), expected.transpose(0, 2, 1)
    limit = allowed(got, expected)
    assert limit == pytest.approx(1e-4 + 0.9e-3)
    got[got < 1] = 0.9
    got[got > 1] += 0.5
    assert allowed(got, expected) is None


@pytest.mark.parametrize(("changed", "passes"), [(1, True), (2, False)])
def test_whole_numbers_may_differ_once_in_a_thousand(changed: int, passes: bool) -> None:
    expected = np.zeros((1, 1000), np.int64)
    got = expected.copy()
    got[0, :changed] = 7
    assert (allowed(got, expected, np.int64) is None) is passes


def test_the_figures_are_those_of_the_worst_probe() -> None:
    runner = Runner(tiny.classifier().SerializeToString(), "tiny")
    spec = InputSpec(size_wh=(16, 16), std=(255, 255, 255))
    probes = make_probes(spec, NONE)
    expected = [
        tuple(value + (0.25 if p.name == "white" else 0.001) for value in runner(p.make()).values()) for p in probes
    ]
    comparison = compare(runner, probes, expected, ["out"])
    [found] = comparison.outputs
    assert (found.name, found.shape, found.probe, found.on_images) == ("out", (1, 3), "white", None)
    assert found.absolute == pytest.approx(0.25)
    assert comparison.problem is not None
    assert comparison.problem.startswith(
        "output 'out' differs by 0.001 on input 'zeros', where rounding explains 0.000"
    )


def test_what_the_optimizer_gets_wrong_is_no_fault_of_the_model() -> None:
    """A transpose of the last two axes before a product with a vector: seen in ONNX Runtime 1.20.1 to 1.31.1."""
    nodes = [
        helper.make_node("Transpose", ["images"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["t", "vector"], ["y"]),
    ]
    proto = tiny.model(nodes, [1, 3, 8, 16], {"y": [1, 3, 16]}, {"vector": np.arange(8, dtype=np.float32)})
    probes = make_probes(InputSpec(size_wh=(16, 8), std=(255, 255, 255)), NONE)
    expected = [(np.einsum("bchw,h->bcw", probe.make(), np.arange(8)),) for probe in probes]
    found = compare_model(proto.SerializeToString(), "m", probes, expected, ["y"])
    if found.problem is None:
        pytest.skip("this ONNX Runtime has no such fault")
    assert found.is_explained
    assert "changes the result when it optimizes the graph, a fault of its own" in found.problem
    wrong = [(outputs + 1,) for (outputs,) in expected]
    assert not compare_model(proto.SerializeToString(), "m", probes, wrong, ["y"]).is_explained


def test_every_probe_is_another_input_and_the_same_each_time(tmp_path: Path) -> None:
    spec = InputSpec(size_wh=(16, 8), mean=(10, 20, 30), std=(64, 64, 64))
    images = find_images([write_pictures(tmp_path / "pictures", 40)])
    probes = make_probes(spec, images, batch=True)
    names = [probe.name for probe in probes]
    made = ["zeros", "ones", "noise x0.1", "noise x1", "noise x10", "black", "white", "random pixels"]
    assert names[:8] == made
    assert [p.is_image for p in probes] == [False] * 8 + [True] * 16 + [False]
    assert names[-1] == "batch of 2"
    assert {probe.make().shape for probe in probes[:-1]} == {(1, 3, 8, 16)}
    assert probes[-1].make().shape == (2, 3, 8, 16)
    tensors = {probe.make().tobytes() for probe in probes}
    assert len(tensors) == len(probes)
    assert tensors == {probe.make().tobytes() for probe in probes}
    white = probes[names.index("white")].make()
    np.testing.assert_allclose(white[0, :, 0, 0], (255 - np.array([10, 20, 30])) / 64, rtol=1e-6)


def test_a_model_that_draws_random_numbers_is_refused() -> None:
    nodes = [
        helper.make_node("RandomUniformLike", ["images"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["y"], axes=[2, 3], keepdims=0),
    ]
    runner = Runner(tiny.model(nodes, [1, 3, 4, 4], {"y": [1, 3]}).SerializeToString(), "dice.onnx")
    with pytest.raises(ModelError, match=r"dice\.onnx: output 'y' differs between two runs on input 'zeros'"):
        observe(runner, [Probe("zeros", lambda: np.zeros((1, 3, 4, 4), np.float32))])


def mean_model(axes: list[int], keepdims: int, opset: int) -> onnx.ModelProto:
    """A mean whose axes are an attribute or, since opset 18, a constant."""
    weights = {"axes": np.array(axes, np.int64)} if opset >= 18 else {}
    inputs, attributes = (["images", "axes"], {}) if opset >= 18 else (["images"], {"axes": axes})
    nodes = [helper.make_node("ReduceMean", inputs, ["y"], keepdims=keepdims, **attributes)]
    return tiny.model(nodes, [1, 3, 4, 4], {"y": [1, 3, 1, 1] if keepdims else [1, 3]}, weights, opset=opset)


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("axes", [[2, 3], [-1, -2]])
def test_a_mean_over_the_picture_becomes_a_pool(axes: list[int], opset: int) -> None:
    proto = mean_model(axes, 1, opset)
    before = Runner(proto.SerializeToString(), "before")
    assert pool_means(proto) == 1
    onnx.checker.check_model(proto, full_check=True)
    assert [node.op_type for node in proto.graph.node] == ["GlobalAveragePool"]
    assert not proto.graph.initializer
    noise = np.random.default_rng(5).standard_normal((1, 3, 4, 4), np.float32)
    after = Runner(proto.SerializeToString(), "after")
    np.testing.assert_allclose(after(noise)["y"], before(noise)["y"], rtol=1e-6)


@pytest.mark.parametrize(("axes", "keepdims"), [([2, 3], 0), ([1, 2], 1), ([3], 1)])
def test_other_means_stay(axes: list[int], keepdims: int) -> None:
    proto = mean_model(axes, keepdims, 18)
    assert pool_means(proto) == 0
    assert [node.op_type for node in proto.graph.node] == ["ReduceMean"]


def test_axes_that_a_branch_reads_stay() -> None:
    proto = mean_model([2, 3], 1, 18)
    branch = helper.make_graph(
        [helper.make_node("ReduceMax", ["images", "axes"], ["z"])],
        "branch",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 3, 1, 1])],
    )
    condition = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("v", TensorProto.BOOL, [], [True]))
    proto.graph.node.extend([condition, helper.make_node("If", ["yes"], ["z"], then_branch=branch, else_branch=branch)])
    assert pool_means(proto) == 1
    assert [tensor.name for tensor in proto.graph.initializer] == ["axes"]
