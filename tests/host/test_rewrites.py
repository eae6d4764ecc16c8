"""Rewrites of quantized graphs: less work, and the values that there were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from edge_sdk.bundle import Bundle
from edge_sdk.target import load_target
from edge_sdk_tools.build import build
from edge_sdk_tools.quantize import core_form, recipes_for
from edge_sdk_tools.quantize.shared_scales import share_ranges
from edge_sdk_tools.quantize.softmax import softmax_along_last_axis
from edge_sdk_tools.quantize.upsampling import upsample_by_copies
from tests.device import tiny
from tests.host.projects import write_project

_NOISE = np.random.default_rng(3).normal(size=(1, 4, 6, 8)).astype(np.float32)


def _run(proto: onnx.ModelProto, value: np.ndarray = _NOISE) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    [output] = session.run(None, {"images": value})
    return np.asarray(output)


def _kinds(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def _quantized(nodes: list[onnx.NodeProto], shape: list[int], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """`x` to `y`, between integers of one scale on either side."""
    first, last = ["scale", "zero"], ["scale", "zero_after" if "zero_after" in weights else "zero"]
    around = [
        helper.make_node("QuantizeLinear", ["images", *first], ["q"]),
        helper.make_node("DequantizeLinear", ["q", *first], ["x"]),
        *nodes,
        helper.make_node("QuantizeLinear", ["y", *last], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", *last], ["out"]),
    ]
    constants = {"scale": np.float32(0.031), "zero": np.uint8(111), **weights}
    return tiny.model(around, [1, 4, 6, 8], {"out": shape}, constants)


def _resized(scales: tuple[float, ...] = (2, 3), after: int | None = None, **attributes: str) -> onnx.ModelProto:
    weights = {"scales": np.array([1, 1, *scales], np.float32)}
    if after is not None:
        weights["zero_after"] = np.array(after, np.uint8)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], name="resize", **attributes)
    return _quantized([node], [1, 4, int(6 * scales[0]), int(8 * scales[1])], weights)


def _shape_of_result(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    return {"y": tuple(d.dim_value for d in proto.graph.output[0].type.tensor_type.shape.dim)}


@pytest.mark.parametrize(
    "attributes",
    [
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"},
        {},
    ],
)
@pytest.mark.parametrize("scales", [(2, 3), (4, 1)])
def test_repeating_is_copying(scales: tuple[int, int], attributes: dict[str, str]) -> None:
    proto = _resized(scales, **attributes)
    expected = _run(proto)
    upsample_by_copies(proto, _shape_of_result(proto))
    assert "Resize" not in _kinds(proto)
    assert np.array_equal(_run(proto), expected)
    assert len(np.unique(expected)) > 50


@pytest.mark.parametrize(
    "proto",
    [
        _resized(mode="linear"),
        _resized(coordinate_transformation_mode="asymmetric", nearest_mode="ceil"),
        _resized(coordinate_transformation_mode="align_corners"),
        _resized((1.5, 1.5)),
        _resized(after=110),
    ],
    ids=["interpolated", "shifted", "corners", "broken numbers", "other integers"],
)
def test_what_does_more_than_repeat_stays(proto: onnx.ModelProto) -> None:
    before = proto.SerializeToString()
    upsample_by_copies(proto, _shape_of_result(proto))
    assert proto.SerializeToString() == before


@pytest.mark.parametrize(("axis", "moves"), [(1, True), (2, True), (-1, False), (3, False)])
def test_softmax_runs_along_the_last_axis(axis: int, moves: bool) -> None:
    node = helper.make_node("Softmax", ["images"], ["out"], name="softmax", axis=axis)
    proto = tiny.model([node], [1, 4, 6, 8], {"out": [1, 4, 6, 8]})
    expected = _run(proto)
    softmax_along_last_axis(proto, {"out": (1, 4, 6, 8)})
    assert _kinds(proto) == (["Transpose", "Softmax", "Transpose"] if moves else ["Softmax"])
    assert np.abs(_run(proto) - expected).max() < 1e-6


def _convolution() -> onnx.ModelProto:
    """One convolution between unsigned integers."""
    random = np.random.default_rng(5)
    weights = {
        "weights": random.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8),
        "scales": random.uniform(0.001, 0.002, 4).astype(np.float32),
        "zeros": np.zeros(4, np.int8),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["weights", "scales", "zeros"], ["w"], axis=0),
        helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1]),
    ]
    return _quantized(nodes, [1, 4, 6, 8], weights)


def _constant(proto: onnx.ModelProto, name: str) -> np.ndarray:
    return next(numpy_helper.to_array(w) for w in proto.graph.initializer if w.name == name)


def test_a_core_with_dot_products_gets_signed_integers() -> None:
    proto = _convolution()
    signed = core_form(proto, "cortex-a76")
    assert signed is not None
    assert _constant(signed, "zero").dtype == np.int8
    assert int(_constant(signed, "zero")) == 111 - 128
    assert np.array_equal(_run(signed), _run(proto))
    assert int(_constant(proto, "zero")) == 111


@pytest.mark.parametrize("cpu", ["", "cortex-a53", "cortex-a72"])
def test_other_cores_take_the_model_as_it_is(cpu: str) -> None:
    assert core_form(_convolution(), cpu) is None


_JOINING = tiny.model(
    [
        helper.make_node("Split", ["images"], ["a", "b"], name="split", axis=1),
        helper.make_node("Relu", ["b"], ["c"], name="relu"),
        helper.make_node("Sigmoid", ["c"], ["d"], name="sigmoid"),
        helper.make_node("Concat", ["a", "c"], ["out"], name="concat", axis=1),
    ],
    [1, 4, 6, 8],
    {"out": [1, 4, 6, 8]},
)
_RANGES = {
    "images": (-2.0, 1.0),
    "a": (-2.0, 1.0),
    "b": (-1.0, 1.0),
    "c": (0.0, 3.0),
    "d": (0.0, 1.0),
    "out": (-2.0, 2.0),
}


def test_what_is_joined_has_one_range_and_so_has_what_it_was_cut_from() -> None:
    shared = share_ranges(_JOINING, _RANGES, ())
    assert {shared[name] for name in ("images", "a", "b", "c", "out")} == {(-2.0, 3.0)}
    assert shared["d"] == _RANGES["d"]


def test_what_is_joined_in_float_keeps_its_ranges() -> None:
    assert share_ranges(_JOINING, _RANGES, {"concat"}) == _RANGES


def test_the_cheaper_recipe_comes_first() -> None:
    first, second = recipes_for(load_target("raspberry_pi_4"), reduce_range=False)
    assert (first.shared_scales, second.shared_scales) == (True, False)
    assert first.calibration == second.calibration


def test_a_bundle_for_such_a_core_carries_signed_integers(tmp_path: Path) -> None:
    path = write_project(tmp_path, pictures=16)
    build(path, "raspberry_pi_5", tmp_path / "a.edge", bundle_version=1)
    manifest = Bundle.open(tmp_path / "a.edge").manifest
    assert manifest.provenance.recipe["core_form"] == "cortex-a76"
    config = (tmp_path / "a.edge" / "required_operators_and_types.config").read_text()
    assert "int8_t" in config
    assert "uint8_t" not in config


@pytest.mark.parametrize("operator", ["Mul", "Add"])
def test_constants_that_are_quantized_like_activations_are_signed_too(tmp_path: Path, operator: str) -> None:
    proto = tiny.classifier()
    constant = np.linspace(0.2, 1.4, 8, dtype=np.float32).reshape(1, 8, 1, 1)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(constant, "constant"))
    at = next(i for i, node in enumerate(proto.graph.node) if node.name == "second")
    proto.graph.node[at].input[0] = "scaled"
    proto.graph.node.insert(at, helper.make_node(operator, ["r1", "constant"], ["scaled"], name="by_constant"))
    build(write_project(tmp_path / "p", model=proto), "raspberry_pi_5", tmp_path / "a.edge")
    manifest = Bundle.open(tmp_path / "a.edge").manifest
    assert manifest.provenance.recipe["core_form"] == "cortex-a76"
    # The file that ships is the signed one, whatever the fallback.
    assert manifest.variants[0].integer_mac_share == 1.0
