"""Quantization: types as the target says, the decoding tail found by structure, integers proved, local noise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import ModelError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.check.gate import check_model, examine
from edge_sdk_tools.datasets.dataset import find_images
from edge_sdk_tools.graph.profile import saturates
from edge_sdk_tools.quantize.calibration import Activations, Histogram, watch_activations
from edge_sdk_tools.quantize.convert import convert, integer_mac_share
from edge_sdk_tools.quantize.quantize import Quantized, Recipe, first_recipe, quantize
from edge_sdk_tools.quantize.simplified import Simplified, convolution_macs, decoding_tail, simplify
from edge_sdk_tools.search.sensitivity import LocalNoise, local_noise
from tests.support import models as heads
from tests.support import models as tiny
from tests.support.models import Head
from tests.support.projects import CLASSIFIER, picture, write_project


def _quantize(folder: Path, target: str, model: onnx.ModelProto | None = None, text: str = CLASSIFIER) -> Quantized:
    spec: ModelSpec = load_model_spec(write_project(folder, text, model))
    work = folder / "work"
    work.mkdir()
    proto = check_model(spec, load_target(target)).proto if model is None else model
    simplified = simplify(proto, work)
    activations = watch_activations(simplified, find_images([folder / "pictures"]), spec.input, symmetric=False)
    recipe = first_recipe(load_target(target), reduce_range=load_target(target).reduce_range)
    return quantize(simplified, activations.ranges(recipe.calibration), recipe, work / "int8.onnx")


def _weights(quantized: Quantized) -> list[np.ndarray]:
    proto = onnx.load(quantized.path)
    return [a for a in map(numpy_helper.to_array, proto.graph.initializer) if a.ndim == 4]


@pytest.mark.parametrize(("target", "largest"), [("x86_64", 127), ("x86_64_avx2", 64)])
def test_weights_have_seven_bits_where_the_product_saturates(tmp_path: Path, target: str, largest: int) -> None:
    weights = _weights(_quantize(tmp_path, target))
    assert all(w.dtype == np.int8 for w in weights)
    assert max(int(np.abs(w.astype(int)).max()) for w in weights) == largest


def test_hosts_whose_products_saturate_are_known() -> None:
    flags = ("fpu avx2 avx512_vnni", "fpu avx2 avx_vnni", "fpu avx2")
    assert [saturates("x86_64", f"flags : {found}") for found in flags] == [False, False, True]
    assert not saturates("aarch64", "Features : fp asimd")


def test_activations_are_unsigned_and_weights_have_a_scale_a_channel(tmp_path: Path) -> None:
    proto = onnx.load(_quantize(tmp_path, "arm64").path)
    values = {w.name: numpy_helper.to_array(w) for w in proto.graph.initializer}
    zero_points = [values[n.input[2]] for n in proto.graph.node if n.op_type == "QuantizeLinear"]
    assert {z.dtype for z in zero_points} == {np.dtype(np.uint8)}
    scales = [values[n.input[1]] for n in proto.graph.node if n.op_type == "DequantizeLinear"]
    assert sorted(s.size for s in scales if s.ndim) == [3, 3, 8, 8]


def test_scores_survive_beside_boxes_because_the_tail_is_float(tmp_path: Path) -> None:
    """Boxes of tens beside scores of 0-1 in one output: together in INT8 the scores would have a few levels."""
    head, outputs = heads.yolov8()
    proto = head.model(*outputs)
    quantized = _quantize(tmp_path, "arm64", proto, CLASSIFIER.replace("[16, 16]", "[8, 8]"))
    converted = convert(quantized.path, load_target("arm64"), tmp_path / "work")
    assert integer_mac_share(converted.model, quantized.macs, tmp_path) == 1.0
    int8 = Session(converted.model.read_bytes(), SessionSettings(), "int8")
    fp32 = Session(proto.SerializeToString(), SessionSettings(), "fp32")
    prepare = Prepare(load_model_spec(tmp_path / "model.toml").input)
    tensor = prepare.normalise(prepare.resize(picture(3)))
    got, expected = int8.run(tensor)[0], fp32.run(tensor)[0]
    assert expected[:, :4].max() > 10
    assert np.abs(got[:, 4:] - expected[:, 4:]).max() < 0.1
    assert len(np.unique(got[:, 4:])) > 20


def test_macs_are_those_of_the_definition(tmp_path: Path) -> None:
    quantized = _quantize(tmp_path, "arm64")
    assert quantized.macs == {"first": 8 * 8 * 8 * 3 * 9, "second": 3 * 8 * 8 * 8 * 9}
    assert quantized.float_nodes == ("GlobalAveragePool_3", "Flatten_4", "Softmax_5")
    assert convolution_macs(onnx.load(quantized.path.parent / "simplified.onnx")) == quantized.macs


def test_a_file_that_runs_in_float_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converted without the fusions, it looks quantized and computes in float: this is what the proof is for."""
    quantized, target = _quantize(tmp_path, "arm64"), load_target("arm64")
    plain = convert(quantized.path.parent / "simplified.onnx", target, tmp_path).model
    assert integer_mac_share(plain, quantized.macs, tmp_path) == 0.0
    assert integer_mac_share(plain, {}, tmp_path) == 1.0
    monkeypatch.setenv("ORT_CONVERT_ONNX_MODELS_TO_ORT_OPTIMIZATION_LEVEL", "basic")
    converted = convert(quantized.path, target, tmp_path / "work")
    assert integer_mac_share(converted.model, quantized.macs, tmp_path) == 0.0


def _assert(*_arguments: object, **_named: object) -> None:
    raise AssertionError  # as a bare `assert` of ONNX Runtime's own tools does


@pytest.mark.parametrize(
    ("module", "part", "failed"),
    [
        ("quantize.simplified", "quant_pre_process", "quantization"),
        ("quantize.quantize", "quantized_proto", "quantization"),
        ("quantize.convert", "convert_onnx_models_to_ort", "conversion to ORT format"),
    ],
)
def test_a_bare_assert_of_a_library_names_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, part: str, failed: str
) -> None:
    monkeypatch.setattr(sys.modules[f"edge_sdk_tools.{module}"], part, _assert)
    with pytest.raises(ModelError, match=rf"^{failed} failed: AssertionError \(test_quantize\.py:\d+\)$"):
        convert(_quantize(tmp_path, "arm64").path, load_target("arm64"), tmp_path / "work")


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


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tail_is_what_decodes_and_every_layer_is_left_to_the_integers(tmp_path: Path, family: str) -> None:
    """Behind ONNX Runtime's simplification too, under whatever names it leaves."""
    head, outputs = FAMILIES[family]()
    proto = head.model(*outputs)
    assert head.tail
    assert list(decoding_tail(proto)) == head.tail
    simplified = simplify(proto, tmp_path)
    tail = {node.op_type for node in simplified.proto.graph.node if node.name in simplified.tail}
    integers = {node.op_type for node in simplified.proto.graph.node if node.name not in simplified.tail}
    assert len(simplified.macs) == sum(node.op_type == "Conv" for node in proto.graph.node) - ("Conv" in tail)
    assert integers <= {"Conv", "Sigmoid", "Mul"}
    assert tail & {"Sigmoid", "Softmax", "Concat", "Transpose", "Reshape", "Split"}


def test_raw_heads_have_no_tail() -> None:
    assert decoding_tail(tiny.head_detector()) == ()


RANDOM = np.random.default_rng(5)
VALUES = RANDOM.normal(0.5, 0.2, (1, 3, 64, 64)).astype(np.float32)
VALUES[0, 0, 0, :3] = 3.0  # outliers, which percentiles cut off
WEIGHTS = RANDOM.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32)
WEIGHTS[0] *= 30  # one channel that would spoil a scale for all


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Simplified:
    node = helper.make_node("Conv", ["images", "w"], ["y"], name="layer")
    proto = tiny.model([node], [1, 3, 64, 64], {"y": [1, 8, 62, 62]}, {"w": WEIGHTS})
    return simplify(proto, tmp_path_factory.mktemp("model"))


def _noise(model: Simplified, folder: Path, **settings: object) -> tuple[list[LocalNoise], onnx.ModelProto]:
    recipe: Recipe = msgspec.structs.replace(
        first_recipe(load_target("x86_64"), reduce_range=False), **{"calibration": "min-max", **settings}
    )
    seen = {name: Histogram() for name in ("images", "y")}
    for histogram, values in zip(seen.values(), (VALUES, 10 * VALUES), strict=True):
        histogram.add(values)
    activations = Activations(seen, 1, 1, (0,), ())
    quantized = onnx.load(quantize(model, activations.ranges(recipe.calibration), recipe, folder / "int8.onnx").path)
    return list(local_noise(model, activations, quantized)), quantized


def _share(error: np.ndarray, signal: np.ndarray) -> float:
    return float((error.astype(np.float64) ** 2).sum() / (signal.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize(
    ("calibration", "reduce_range", "largest_integer"), [("min-max", False, 127), ("percentile 99.99", True, 64)]
)
def test_local_noise_is_the_noise_of_the_very_integers(
    model: Simplified, tmp_path: Path, calibration: str, *, reduce_range: bool, largest_integer: int
) -> None:
    [layer], quantized = _noise(model, tmp_path, calibration=calibration, reduce_range=reduce_range)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}
    scale, zero = constants["images_scale"], int(constants["images_zero_point"])
    rounded = (np.clip(np.round(VALUES / scale) + zero, 0, 255) - zero) * scale
    assert layer.activation_noise == pytest.approx(_share(rounded - VALUES, VALUES), rel=0.05)
    scales = np.abs(WEIGHTS).max(axis=(1, 2, 3), keepdims=True) / largest_integer
    assert layer.weight_noise == pytest.approx(_share(np.round(WEIGHTS / scales) * scales - WEIGHTS, WEIGHTS), rel=0.05)
    assert (layer.node, layer.operator, layer.macs_share) == ("layer", "Conv", 1.0)
    both = (layer.activation_noise or 0) + (layer.weight_noise or 0)
    assert layer.sqnr_db == pytest.approx(-10 * np.log10(both))


def test_a_layer_that_is_left_float_has_no_local_noise(model: Simplified, tmp_path: Path) -> None:
    assert _noise(model, tmp_path, float_nodes=("layer",))[0] == []


def test_a_model_that_is_quantized_already_is_refused_by_name(tmp_path: Path) -> None:
    onnx.save(tiny.classifier(), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx", weight_type=QuantType.QUInt8)
    model = write_project(tmp_path / "again", model=onnx.load(tmp_path / "int8.onnx"))
    with pytest.raises(ModelError, match=r"model\.onnx: is quantized already \(.*ConvInteger.*expected float"):
        build(model, "x86_64", tmp_path / "a.edge")
    assert not list(tmp_path.glob("*a.edge*"))
    report = examine(load_model_spec(model))  # `check` finds what `build` refuses
    assert (report.passed, [error.rule for error in report.of("error")]) == (False, ["quantized"])


def test_a_simplified_model_of_which_nothing_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ONNX Runtime leaves it on a full disk, without a word."""
    module = sys.modules["edge_sdk_tools.quantize.simplified"]
    monkeypatch.setattr(module, "quant_pre_process", lambda _source, result, **_options: Path(result).touch())
    with pytest.raises(ModelError, match="quantization failed: nothing was written"):
        _quantize(tmp_path, "arm64")


def test_what_the_disk_refuses_a_library_is_not_blamed_on_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["edge_sdk_tools.quantize.simplified"]
    monkeypatch.setattr(module, "quant_pre_process", lambda *_arguments, **_options: Path("gone/x").read_bytes())
    with pytest.raises(FileNotFoundError):
        _quantize(tmp_path, "arm64")
