"""quantize and convert: types as the target says, the tail found by structure, integers proved and not assumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edge_sdk.model_spec import ModelSpec, load_model_spec
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session, SessionSettings
from edge_sdk.target import load_target
from edge_sdk_tools.check import check_model
from edge_sdk_tools.convert import convert, integer_mac_share
from edge_sdk_tools.dataset import find_images
from edge_sdk_tools.host_cpu import saturates
from edge_sdk_tools.quantize import (
    Quantized,
    convolution_macs,
    decoding_tail,
    first_recipe,
    quantize,
    simplify,
    watch_activations,
)
from tests.device import tiny
from tests.host.images import picture
from tests.host.projects import CLASSIFIER, write_project


def _quantize(folder: Path, target: str, model: onnx.ModelProto | None = None, text: str = CLASSIFIER) -> Quantized:
    spec: ModelSpec = load_model_spec(write_project(folder, text, model))
    work = folder / "work"
    work.mkdir()
    simplified = simplify(check_model(spec, load_target(target)).proto, work)
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


@pytest.mark.parametrize(
    ("machine", "cpu_info", "expected"),
    [
        ("x86_64", "flags : fpu avx2 avx512_vnni", False),
        ("x86_64", "flags : fpu avx2 avx_vnni", False),
        ("x86_64", "flags : fpu avx2", True),
        ("aarch64", "Features : fp asimd", False),
    ],
)
def test_hosts_that_saturate_are_known(machine: str, cpu_info: str, expected: bool) -> None:
    assert saturates(machine, cpu_info) is expected


def test_activations_are_unsigned_and_weights_have_a_scale_a_channel(tmp_path: Path) -> None:
    proto = onnx.load(_quantize(tmp_path, "arm64").path)
    values = {w.name: numpy_helper.to_array(w) for w in proto.graph.initializer}
    zero_points = [values[n.input[2]] for n in proto.graph.node if n.op_type == "QuantizeLinear"]
    assert {z.dtype for z in zero_points} == {np.dtype(np.uint8)}
    scales = [values[n.input[1]] for n in proto.graph.node if n.op_type == "DequantizeLinear"]
    assert sorted(s.size for s in scales if s.ndim) == [3, 3, 8, 8]


def _yolo_like_tail(scrambled: bool) -> onnx.ModelProto:
    """Two convolutions, one for boxes through a distribution's mean, one for scores; both end in one Concat."""
    random = np.random.default_rng(0)
    name = (lambda n: f"x{n[::-1]}") if scrambled else (lambda n: n)
    node = helper.make_node
    nodes = [
        node("Conv", ["images", "w0"], ["f"], name=name("backbone"), pads=[1, 1, 1, 1]),
        node("Conv", ["f", "wb"], ["b"], name=name("box")),
        node("Conv", ["f", "wc"], ["c"], name=name("score")),
        node("Reshape", ["b", "shape"], ["br"], name=name("reshape")),
        node("Softmax", ["br"], ["bs"], name=name("softmax"), axis=1),
        node("Conv", ["bs", "mean"], ["bm"], name=name("dfl")),
        node("Reshape", ["bm", "flat"], ["bf"], name=name("flat")),
        node("Sigmoid", ["c"], ["cs"], name=name("sigmoid")),
        node("Reshape", ["cs", "flat2"], ["cf"], name=name("flat2")),
        node("Concat", ["bf", "cf"], ["out"], name=name("concat"), axis=1),
    ]
    weights = {
        "w0": random.normal(size=(8, 3, 3, 3)).astype(np.float32),
        "wb": random.normal(size=(16, 8, 1, 1)).astype(np.float32),
        "wc": random.normal(size=(2, 8, 1, 1)).astype(np.float32),
        "mean": np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1),
        "shape": np.array([1, 4, 4, 256]),
        "flat": np.array([1, 4, 256]),
        "flat2": np.array([1, 2, 256]),
    }
    return tiny.model(nodes, [1, 3, 16, 16], {"out": [1, 6, 256]}, weights)


@pytest.mark.parametrize("scrambled", [False, True])
def test_the_tail_is_found_from_the_structure(scrambled: bool) -> None:
    proto = _yolo_like_tail(scrambled)
    by_name = {node.name: node for node in proto.graph.node}
    tail = [by_name[name] for name in decoding_tail(proto)]
    assert [n.op_type for n in tail] == ["Reshape", "Softmax", "Conv", "Reshape", "Sigmoid", "Reshape", "Concat"]
    assert [n.input[1] for n in tail if n.op_type == "Conv"] == ["mean"]


def test_scores_survive_beside_boxes_because_the_tail_is_float(tmp_path: Path) -> None:
    """Boxes of tens beside scores of 0-1 in one output: together in INT8 the scores would have a few levels."""
    text = CLASSIFIER.replace("[data]", "[gates]\nint8_min_agreement = 0\n[data]")
    proto = _yolo_like_tail(scrambled=False)
    spec = load_model_spec(write_project(tmp_path, text, proto))
    work = tmp_path / "work"
    work.mkdir()
    simplified = simplify(proto, work)
    activations = watch_activations(simplified, find_images([tmp_path / "pictures"]), spec.input, symmetric=False)
    recipe = first_recipe(load_target("arm64"), reduce_range=True)
    quantized = quantize(simplified, activations.ranges(recipe.calibration), recipe, work / "int8.onnx")
    converted = convert(quantized.path, load_target("arm64"), work)
    assert integer_mac_share(converted.model, quantized.macs, tmp_path) == 1.0
    int8 = Session(converted.model.read_bytes(), SessionSettings(), "int8")
    fp32 = Session(proto.SerializeToString(), SessionSettings(), "fp32")
    prepare = Prepare(spec.input)
    tensor = prepare.normalise(prepare.resize(picture(3)))
    got, expected = int8.run(tensor)[0][:, 4:], fp32.run(tensor)[0][:, 4:]
    assert np.abs(got - expected).max() < 0.1
    assert len(np.unique(got)) > 30


def test_raw_heads_have_no_tail() -> None:
    assert decoding_tail(tiny.head_detector()) == ()


def test_macs_are_those_of_the_definition(tmp_path: Path) -> None:
    quantized = _quantize(tmp_path, "arm64")
    assert quantized.macs == {"first": 8 * 8 * 8 * 3 * 9, "second": 3 * 8 * 8 * 8 * 9}
    assert quantized.float_nodes == ("GlobalAveragePool_3", "Flatten_4", "Softmax_5")
    assert convolution_macs(onnx.load(quantized.path.parent / "simplified.onnx")) == quantized.macs


@pytest.mark.parametrize("target", ["x86_64", "arm64"])
def test_convolutions_run_in_integers(tmp_path: Path, target: str) -> None:
    quantized = _quantize(tmp_path, target)
    converted = convert(quantized.path, load_target(target), tmp_path / "work")
    assert integer_mac_share(converted.model, quantized.macs, tmp_path) == 1.0
    assert "com.microsoft:QLinearConv" in converted.operators


def test_a_file_that_runs_in_float_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converted without the fusions, it looks quantized and computes in float: this is what the proof is for."""
    quantized = _quantize(tmp_path, "arm64")
    monkeypatch.setenv("ORT_CONVERT_ONNX_MODELS_TO_ORT_OPTIMIZATION_LEVEL", "basic")
    converted = convert(quantized.path, load_target("arm64"), tmp_path / "work")
    assert integer_mac_share(converted.model, quantized.macs, tmp_path) == 0.0


def test_a_float_model_has_no_integer_share(tmp_path: Path) -> None:
    quantized = _quantize(tmp_path, "arm64")
    converted = convert(quantized.path.parent / "simplified.onnx", load_target("arm64"), tmp_path / "work")
    assert integer_mac_share(converted.model, quantized.macs, tmp_path) == 0.0
    assert integer_mac_share(converted.model, {}, tmp_path) == 1.0
