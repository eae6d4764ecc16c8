"""Offset weights: the form of a Cortex-A72, and the room that its recipes leave for it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from edge_sdk.bundle import Bundle
from edge_sdk.model_spec import ModelSpec, load_model_spec
from edge_sdk.session import Session, SessionSettings
from edge_sdk.target import load_target
from edge_sdk_tools.build import build
from edge_sdk_tools.dataset import ImageSet, find_images
from edge_sdk_tools.device_form import fit_to_core
from edge_sdk_tools.pixel_input import level_graphs, level_model
from edge_sdk_tools.quantize import Quantized, core_form, first_recipe, quantize, simplify, watch_activations
from edge_sdk_tools.search import Choice
from tests.device import tiny
from tests.host.projects import write_project
from tests.host.proofs import flawless_proof

_A72 = load_target("raspberry_pi_4")
_WIDE = "wide_weights"


def wide_classifier() -> onnx.ModelProto:
    """Six convolutions, of which the two wide ones share their weights."""
    random = np.random.default_rng(11)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)

    weights = {
        "narrow_weights": normal(64, 3, 3, 3),
        _WIDE: normal(64, 64, 3, 3) * np.linspace(0.5, 2, 64, dtype=np.float32).reshape(64, 1, 1, 1),
        "wide_bias": normal(64),
        "deep_weights": normal(64, 1, 3, 3),
        "point_weights": normal(64, 64, 1, 1),
        "few_weights": normal(3, 64, 3, 3),
    }
    around = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["images", "narrow_weights"], ["a"], name="narrow", **around),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", _WIDE, "wide_bias"], ["c"], name="wide", **around),
        helper.make_node("Conv", ["c", _WIDE, "wide_bias"], ["d"], name="again", **around, strides=[2, 2]),
        helper.make_node("Conv", ["d", "deep_weights"], ["e"], name="deep", **around, group=64),
        helper.make_node("Conv", ["e", "point_weights"], ["f"], name="point"),
        helper.make_node("Conv", ["f", "few_weights"], ["g"], name="few", **around),
        helper.make_node("GlobalAveragePool", ["g"], ["h"], name="mean"),
        helper.make_node("Flatten", ["h"], ["i"], name="flat"),
        helper.make_node("Softmax", ["i"], ["probabilities"], name="softmax"),
    ]
    return tiny.model(nodes, [1, 3, 16, 16], {"probabilities": [1, 3]}, weights)


def _quantize(folder: Path, **settings: bool) -> tuple[Quantized, ModelSpec, ImageSet]:
    spec = load_model_spec(write_project(folder, model=wide_classifier()))
    images = find_images([folder / "pictures"])
    work = folder / "work"
    work.mkdir()
    simplified = simplify(onnx.load(spec.model), work)
    activations = watch_activations(simplified, images, spec.input, symmetric=False)
    recipe = msgspec.structs.replace(first_recipe(_A72, reduce_range=False), **settings)
    return quantize(simplified, activations.ranges(recipe.calibration), recipe, work / "int8.onnx"), spec, images


def _constants(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {w.name: numpy_helper.to_array(w) for w in proto.graph.initializer}


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(("reduce_range", "largest"), [(False, 127), (True, 64)])
def test_wide_kernels_leave_room_and_no_others(
    tmp_path: Path, *, per_channel: bool, reduce_range: bool, largest: int
) -> None:
    quantized, _, _ = _quantize(tmp_path, per_channel=per_channel, reduce_range=reduce_range)
    found, floats = _constants(onnx.load(quantized.path)), _constants(wide_classifier())
    for name in ("narrow_weights", "point_weights", "few_weights", _WIDE):
        limit = largest - 1 if name == _WIDE else largest
        integers, scale = found[f"{name}_quantized"], found[f"{name}_scale"]
        peaks = np.abs(floats[name]).max(axis=(1, 2, 3)) if per_channel else np.abs(floats[name]).max()
        np.testing.assert_allclose(scale, peaks / limit, rtol=1e-6)
        assert np.abs(integers.astype(int)).max() == limit
        steps = floats[name] / (scale.reshape(-1, 1, 1, 1) if per_channel else scale)
        assert np.abs(integers - steps).max() < 0.501
    # A bias counts in products of the two scales.
    bias_scale = found["b_scale"] * found[f"{_WIDE}_scale"]
    np.testing.assert_allclose(found["wide_bias_quantized_scale"], np.ravel(bias_scale), rtol=1e-6)
    values = found["wide_bias_quantized"] * bias_scale
    assert np.abs(values - floats["wide_bias"]).max() <= bias_scale.max()


def test_recipes_leave_room_for_a_cortex_a72_alone() -> None:
    targets = ("raspberry_pi_4", "raspberry_pi_5", "raspberry_pi_zero_2w", "x86_64")
    recipes = [first_recipe(load_target(name), reduce_range=False) for name in targets]
    assert [one.largest_wide_weight for one in recipes] == [126, 127, 127, 127]
    assert [one.settings["leaves_room"] for one in recipes] == [True, False, False, False]
    assert "wide kernels to 126" in recipes[0].text


def test_wide_kernels_are_offset_and_nothing_else(tmp_path: Path) -> None:
    quantized, spec, _ = _quantize(tmp_path)
    plain = onnx.load(quantized.path)
    form = core_form(plain, "cortex-a72")
    assert form is not None
    before, after = _constants(plain), _constants(form)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {f"{_WIDE}_quantized", f"{_WIDE}_zero_point"}
    assert np.array_equal(after[f"{_WIDE}_quantized"], before[f"{_WIDE}_quantized"] - np.int8(1))
    assert (int(after[f"{_WIDE}_quantized"].min()), set(after[f"{_WIDE}_zero_point"].tolist())) == (-127, {-1})
    noise = np.random.default_rng(2).random((1, *spec.input.tensor_shape[1:]), np.float32)
    assert np.array_equal(_run(form, noise), _run(plain, noise))


def _run(proto: onnx.ModelProto, value: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"images": value})[0])


def _zero_point_elsewhere(proto: onnx.ModelProto) -> None:
    """Another tensor's zero point is the same constant."""
    other = next(n for n in proto.graph.node if n.op_type == "DequantizeLinear" and "point" in n.input[0])
    other.input[2] = f"{_WIDE}_zero_point"


def _no_room(proto: onnx.ModelProto) -> None:
    _set(proto, f"{_WIDE}_quantized", lambda value: np.where(value == -126, np.int8(-127), value))


def _offset_already(proto: onnx.ModelProto) -> None:
    _set(proto, f"{_WIDE}_zero_point", lambda value: value + 1)


def _other_reader(proto: onnx.ModelProto) -> None:
    """One of the two that share the weights has another operator."""
    node = next(n for n in proto.graph.node if n.name == "again")
    node.op_type = "ConvTranspose"


def _set(proto: onnx.ModelProto, name: str, change: object) -> None:
    constant = next(w for w in proto.graph.initializer if w.name == name)
    value = change(numpy_helper.to_array(constant)).astype(np.int8)  # type: ignore[operator]
    constant.CopyFrom(numpy_helper.from_array(value, name))


@pytest.mark.parametrize("change", [_zero_point_elsewhere, _no_room, _offset_already, _other_reader])
def test_weights_that_cannot_be_offset_stay(tmp_path: Path, change: object) -> None:
    quantized, _, _ = _quantize(tmp_path)
    proto = onnx.load(quantized.path)
    change(proto)  # type: ignore[operator]
    assert core_form(proto, "cortex-a72") is None


def test_a_bundle_for_a_cortex_a72_computes_with_offset_weights(tmp_path: Path) -> None:
    build(write_project(tmp_path / "p", model=wide_classifier(), pictures=16), "raspberry_pi_4", tmp_path / "a.edge")
    manifest = Bundle.open(tmp_path / "a.edge").manifest
    recipe = manifest.provenance.recipe
    assert (recipe["core_form"], recipe["leaves_room"]) == ("cortex-a72", True)
    assert manifest.variants[0].integer_mac_share == 1.0


def test_a_model_that_takes_levels_is_offset_too(tmp_path: Path) -> None:
    quantized, spec, images = _quantize(tmp_path)
    folder = tmp_path / "levels"
    folder.mkdir()
    graphs = level_graphs(onnx.load(quantized.path), spec.input)
    assert not isinstance(graphs, str)
    levels = level_model(graphs[0], _A72, folder)
    proof = flawless_proof(images)
    choice = Choice("int8", levels.onnx, levels.converted, proof, quantized.recipe, tensor=levels.tensor)
    fp32 = Session(wide_classifier().SerializeToString(), SessionSettings(), "FP32")
    fitted = fit_to_core(choice, spec, _A72, fp32, quantized.macs, folder)
    assert fitted.recipe is not None
    assert (fitted.recipe.core_form, fitted.tensor, fitted.timed) == (
        "cortex-a72",
        levels.tensor,
        levels.converted.model,
    )
    assert fitted.proof.integer_mac_share == 1.0
    # Other weights are another model, and do not ship.
    proto = onnx.load(levels.onnx)
    _set(proto, f"{_WIDE}_quantized", lambda value: value // 2)
    onnx.save(proto, folder / "other.onnx")
    other = msgspec.structs.replace(choice, onnx=folder / "other.onnx")
    (folder / "again").mkdir()
    assert fit_to_core(other, spec, _A72, fp32, quantized.macs, folder / "again") is other
