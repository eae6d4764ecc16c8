"""Device forms: rewrites of quantized graphs that keep their values, signed integers, offset weights."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.bundle.target import load_target
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.datasets.dataset import find_images
from edge_sdk_tools.datasets.images import ImageSet
from edge_sdk_tools.graph.index import GraphIndex
from edge_sdk_tools.quantize.calibration import watch_activations
from edge_sdk_tools.quantize.forms import core_form, level_graphs, make_two_at_once
from edge_sdk_tools.quantize.quantize import (
    Quantized,
    first_recipe,
    quantize,
    share_ranges,
    shuffle_by_gather,
    softmax_along_last_axis,
    upsample_by_copies,
)
from edge_sdk_tools.quantize.simplified import simplify
from edge_sdk_tools.search.shipped_form import fit_to_core, level_model
from tests.support import models as tiny
from tests.support.projects import write_project
from tests.support.reports import flawless_proof, model_variant

_NOISE = np.random.default_rng(3).normal(size=(1, 4, 6, 8)).astype(np.float32)


def _kinds(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def _parsed(text: str, weights: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    return tiny.parsed(text, {"out": [1, 4, 6, 8]}, weights, shape=[1, 4, 6, 8])


def _quantized(text: str, shape: list[int], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """`x` to `y`, between integers of one scale on either side."""
    last = "zero_after" if "zero_after" in weights else "zero"
    text = f"""q = QuantizeLinear(images, scale, zero) x = DequantizeLinear(q, scale, zero) {text}
        yq = QuantizeLinear(y, scale, {last}) out = DequantizeLinear(yq, scale, {last})"""
    constants = {"scale": np.array(0.031, np.float32), "zero": np.array(111, np.uint8), **weights}
    return tiny.parsed(text, {"out": shape}, constants, shape=[1, 4, 6, 8])


def _resized(scales: tuple[float, ...] = (2, 3), after: int | None = None, **attributes: str) -> onnx.ModelProto:
    weights = {"scales": np.array([1, 1, *scales], np.float32)}
    if after is not None:
        weights["zero_after"] = np.array(after, np.uint8)
    given = ", ".join(f'{name}="{value}"' for name, value in attributes.items())
    shape = [1, 4, int(6 * scales[0]), int(8 * scales[1])]
    return _quantized(f"y = Resize{f'<{given}>' if given else ''}(x, , scales)", shape, weights)


def _shape_of_result(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    return {"y": tuple(d.dim_value for d in proto.graph.output[0].type.tensor_type.shape.dim)}


def _convolution(width: int = 8, stride: int = 1, filters: int = 4) -> onnx.ModelProto:
    random = np.random.default_rng(5)
    weights = {
        "weights": random.integers(-127, 128, (filters, 4, 3, 3)).astype(np.int8),
        "scales": random.uniform(0.001, 0.002, filters).astype(np.float32),
        "zeros": np.zeros(filters, np.int8),
    }
    text = f"""w = DequantizeLinear<axis=0>(weights, scales, zeros)
        y = Conv<pads=[1,1,1,1], strides=[{stride},{stride}]>(x, w)"""
    proto = _quantized(text, [1, filters, 6 // stride, -(-width // stride)], weights)
    proto.graph.input[0].type.tensor_type.shape.dim[3].dim_value = width
    return proto


def _run(proto: onnx.ModelProto, value: np.ndarray = _NOISE) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"images": value})[0])


def test_an_upsampling_that_repeats_becomes_copies() -> None:
    for scales, attributes in (
        ((2, 3), {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        ((4, 1), {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}),
        ((2, 3), {}),
    ):
        proto = _resized(scales, **attributes)
        expected = _run(proto)
        upsample_by_copies(proto, _shape_of_result(proto))
        assert "Resize" not in _kinds(proto)
        assert np.array_equal(_run(proto), expected)
        assert len(np.unique(expected)) > 50


def test_an_upsampling_that_does_more_than_repeat_stays() -> None:
    for proto in (
        _resized(mode="linear"),
        _resized(coordinate_transformation_mode="asymmetric", nearest_mode="ceil"),
        _resized(coordinate_transformation_mode="align_corners"),
        _resized((1.5, 1.5)),
        _resized(after=110),  # other integers behind it
    ):
        before = proto.SerializeToString()
        upsample_by_copies(proto, _shape_of_result(proto))
        assert proto.SerializeToString() == before


def test_what_is_an_output_too_is_not_read_by_one_node_alone() -> None:
    shape = [1, 4, 6, 8]
    for outputs, alone in (({"b": shape}, True), ({"a": shape, "b": shape}, False)):
        links = GraphIndex(tiny.parsed("a = Relu(images) b = Sigmoid(a)", outputs, shape=shape).graph)
        assert [links.only_reader("a", kind) is not None for kind in ("Sigmoid", "Relu")] == [alone, False]


@pytest.mark.parametrize(("perm", "becomes"), [([0, 2, 1, 3, 4], ["Gather"]), ([0, 2, 1, 4, 3], None)])
def test_a_shuffle_of_channels_is_one_gather(perm: list[int], becomes: list[str] | None) -> None:
    groups = [1, 2, 2, 6, 8]
    text = f"split = Reshape(images, groups) moved = Transpose<perm={perm}>(split) out = Reshape(moved, whole)"
    proto = _parsed(text, {"groups": np.array(groups), "whole": np.array([1, 4, 6, 8])})
    expected = _run(proto)
    shuffle_by_gather(proto, {"images": (1, 4, 6, 8), "split": tuple(groups), "out": (1, 4, 6, 8)})
    assert _kinds(proto) == (becomes or ["Reshape", "Transpose", "Reshape"])
    assert np.array_equal(_run(proto), expected)


def test_softmax_runs_along_the_last_axis() -> None:
    for axis, moves in ((1, True), (2, True), (-1, False), (3, False)):
        proto = _parsed(f"out = Softmax<axis={axis}>(images)")
        expected = _run(proto)
        softmax_along_last_axis(proto, {"out": (1, 4, 6, 8)})
        assert _kinds(proto) == (["Transpose", "Softmax", "Transpose"] if moves else ["Softmax"])
        assert np.abs(_run(proto) - expected).max() < 1e-6


def test_a_core_with_dot_products_alone_gets_signed_integers() -> None:
    proto = _convolution()
    signed = core_form(proto, "cortex-a76")
    zero = _constants(signed)["zero"]
    assert (zero.dtype, int(zero)) == (np.int8, 111 - 128)
    assert np.array_equal(_run(signed), _run(proto))
    assert int(_constants(proto)["zero"]) == 111
    assert [core_form(proto, cpu) for cpu in ("", "cortex-a53")] == [None] * 2


def test_the_first_convolution_makes_two_pixels_at_once() -> None:
    suited, unsuited = ((8, 1, 4), (8, 2, 4), (16, 2, 32)), ((7, 1, 4), (10, 2, 4), (8, 1, 33))
    for width, stride, filters in suited + unsuited:
        suits = (width, stride, filters) in suited
        proto = _convolution(width, stride, filters)
        noise = np.random.default_rng(7).normal(size=(1, 4, 6, width)).astype(np.float32)
        expected = _run(proto, noise)
        assert make_two_at_once(proto) is suits
        onnx.checker.check_model(proto, full_check=True)
        assert _constants(proto)["weights/two" if suits else "weights"].shape[0] == filters * (2 if suits else 1)
        assert np.array_equal(_run(proto, noise), expected)
        assert not make_two_at_once(proto, in_blocks=True)  # its input has planes


def test_what_is_joined_has_one_range_and_so_has_what_it_was_cut_from() -> None:
    joining = _parsed("a, b = Split<axis=1>(images) c = Relu(b) d = Sigmoid(c) out = Concat<axis=1>(a, c)")
    ranges = {"images": (-2.0, 1.0), "a": (-2.0, 1.0), "b": (-1.0, 1.0), "c": (0.0, 3.0), "d": (0.0, 1.0)}
    ranges["out"] = (-2.0, 2.0)
    shared = dict.fromkeys(("images", "a", "b", "c", "out"), (-2.0, 3.0))
    assert share_ranges(joining, ranges, ()) == {**shared, "d": ranges["d"]}
    assert share_ranges(joining, ranges, {"out"}) == ranges  # joined in float


def test_a_bundle_for_a_core_with_dot_products_has_signed_integers_alone(tmp_path: Path) -> None:
    proto = tiny.classifier()
    constant = np.linspace(0.2, 1.4, 8, dtype=np.float32).reshape(1, 8, 1, 1)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(constant, "constant"))
    at = next(i for i, node in enumerate(proto.graph.node) if node.name == "second")
    proto.graph.node[at].input[0] = "scaled"
    proto.graph.node.insert(at, helper.make_node("Mul", ["r1", "constant"], ["scaled"], name="by_constant"))
    build(write_project(tmp_path / "p", model=proto), "raspberry_pi_5", tmp_path / "a.edge")
    manifest = Bundle.open(tmp_path / "a.edge").manifest
    # The file that ships is the signed one, whatever the fallback.
    recipe, share = manifest.provenance.recipe, manifest.variants[0].integer_mac_share
    assert (recipe["core_form"], recipe["leaves_room"], share) == ("cortex-a76", False, 1.0)
    config = (tmp_path / "a.edge" / "required_operators_and_types.config").read_text()
    assert ("int8_t" in config, "uint8_t" in config) == (True, False)


_A72 = load_target("raspberry_pi_4")
_WIDE = "wide_weights"


def wide_classifier() -> onnx.ModelProto:
    """Six convolutions, of which the two wide ones share their weights."""
    random = np.random.default_rng(11)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)

    weights = {
        "narrow_weights": normal(64, 3, 3, 3), "wide_bias": normal(64), "deep_weights": normal(64, 1, 3, 3),
        "point_weights": normal(64, 64, 1, 1), "few_weights": normal(3, 64, 3, 3),
        _WIDE: normal(64, 64, 3, 3) * np.linspace(0.5, 2, 64, dtype=np.float32).reshape(64, 1, 1, 1),
    }  # fmt: skip
    text = f"""a = Conv<pads=[1,1,1,1]>(images, narrow_weights) b = Relu(a)
        c = Conv<pads=[1,1,1,1]>(b, {_WIDE}, wide_bias) d = Conv<pads=[1,1,1,1], strides=[2,2]>(c, {_WIDE}, wide_bias)
        e = Conv<pads=[1,1,1,1], group=64>(d, deep_weights) f = Conv(e, point_weights)
        g = Conv<pads=[1,1,1,1]>(f, few_weights) h = GlobalAveragePool(g) i = Flatten(h)
        probabilities = Softmax<axis=1>(i)"""
    return tiny.parsed(text, {"probabilities": [1, 3]}, weights)


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


def test_wide_kernels_leave_room_and_no_others(tmp_path: Path) -> None:
    for per_channel, reduce_range, largest in ((True, False, 127), (True, True, 64), (False, False, 127)):
        folder = tmp_path / f"{per_channel}-{reduce_range}"
        quantized, _, _ = _quantize(folder, per_channel=per_channel, reduce_range=reduce_range)
        _check_room(_constants(onnx.load(quantized.path)), largest, per_channel=per_channel)


def _check_room(found: dict[str, np.ndarray], largest: int, *, per_channel: bool) -> None:
    floats = _constants(wide_classifier())
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
    assert np.abs(found["wide_bias_quantized"] * bias_scale - floats["wide_bias"]).max() <= bias_scale.max()


def test_wide_kernels_are_offset_and_nothing_else(tmp_path: Path) -> None:
    quantized, spec, _ = _quantize(tmp_path)
    plain = onnx.load(quantized.path)
    form = core_form(plain, "cortex-a72")
    before, after = _constants(plain), _constants(form)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {f"{_WIDE}_quantized", f"{_WIDE}_zero_point"}
    assert np.array_equal(after[f"{_WIDE}_quantized"], before[f"{_WIDE}_quantized"] - np.int8(1))
    assert (int(after[f"{_WIDE}_quantized"].min()), set(after[f"{_WIDE}_zero_point"].tolist())) == (-127, {-1})
    noise = np.random.default_rng(2).random((1, *spec.input.tensor_shape[1:]), np.float32)
    # Node by node as written: in one kernel a CPU without VNNI saturates sums of the one and not of the other.
    assert np.array_equal(_run(form, noise), _run(plain, noise))


def _zero_point_elsewhere(proto: onnx.ModelProto) -> None:
    other = next(n for n in proto.graph.node if n.op_type == "DequantizeLinear" and "point" in n.input[0])
    other.input[2] = f"{_WIDE}_zero_point"


def _no_room(proto: onnx.ModelProto) -> None:
    _set(proto, f"{_WIDE}_quantized", lambda value: np.where(value == -126, np.int8(-127), value))


def _other_reader(proto: onnx.ModelProto) -> None:
    """One of the two that share the weights has another operator."""
    next(n for n in proto.graph.node if n.name == "d").op_type = "ConvTranspose"


def _set(proto: onnx.ModelProto, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    constant = next(w for w in proto.graph.initializer if w.name == name)
    constant.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(constant)).astype(np.int8), name))


def test_weights_that_cannot_be_offset_stay(tmp_path: Path) -> None:
    quantized, _, _ = _quantize(tmp_path)
    for change in (_zero_point_elsewhere, _no_room, _other_reader):
        proto = onnx.load(quantized.path)
        change(proto)
        assert core_form(proto, "cortex-a72") is None, change.__name__


def test_a_bundle_for_a_cortex_a72_computes_with_offset_weights(tmp_path: Path) -> None:
    build(write_project(tmp_path / "p", model=wide_classifier(), pictures=16), "raspberry_pi_4", tmp_path / "a.edge")
    manifest = Bundle.open(tmp_path / "a.edge").manifest
    recipe, share = manifest.provenance.recipe, manifest.variants[0].integer_mac_share
    assert (recipe["core_form"], recipe["leaves_room"], share) == ("cortex-a72", True, 1.0)


def test_a_model_that_takes_levels_is_offset_too(tmp_path: Path) -> None:
    quantized, spec, images = _quantize(tmp_path)
    folder = tmp_path / "levels"
    graphs = level_graphs(onnx.load(quantized.path), spec.input)
    assert not isinstance(graphs, str)
    levels = level_model(graphs[0], _A72, folder)
    fp32 = Session(wide_classifier().SerializeToString(), SessionSettings(), "FP32")
    made = {"onnx": levels.onnx, "converted": levels.converted, "macs": quantized.macs, "tensor": levels.tensor}
    choice = model_variant(flawless_proof(images), spec=spec, fp32=fp32, **made)
    fitted = fit_to_core(choice, _A72, folder)
    assert (fitted.recipe.core_form, fitted.proof.integer_mac_share) == ("cortex-a72", 1.0)
    assert (fitted.tensor, fitted.timed) == (levels.tensor, levels.converted.model)
    # Other weights are another model, and do not ship.
    proto = onnx.load(levels.onnx)
    _set(proto, f"{_WIDE}_quantized", lambda value: value // 2)
    onnx.save(proto, folder / "other.onnx")
    other = msgspec.structs.replace(choice, onnx=folder / "other.onnx")
    (folder / "again").mkdir()
    assert fit_to_core(other, _A72, folder / "again") is other
