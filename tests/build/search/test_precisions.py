"""Float models: as ONNX on x86_64 and in ORT format elsewhere, with half weights, and dynamic INT8 for products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.target import load_target
from edge_sdk.cli.root import run
from edge_sdk.core.errors import ModelError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.variants import Request
from edge_sdk_tools.prove import golden
from edge_sdk_tools.prove.runtime_versions import replay_variants
from edge_sdk_tools.quantize.convert import bare, float_file
from edge_sdk_tools.quantize.precisions import MAKERS, with_half_weights
from edge_sdk_tools.quantize.quantize import Recipe
from edge_sdk_tools.quantize.simplified import simplify
from edge_sdk_tools.search import variant as search_variant
from tests.support import models as tiny
from tests.support.models import mixer, wide_classifier
from tests.support.projects import write_project
from tests.support.reports import from_json

_SECRET = "/home/somebody/train.py"


def _exported() -> onnx.ModelProto:
    """A model with all that exporters and ONNX Runtime leave in a file."""
    proto = wide_classifier()
    proto.ir_version = 12
    proto.doc_string = proto.graph.doc_string = proto.graph.input[0].doc_string = _SECRET
    proto.metadata_props.add(key="trained by", value=_SECRET)
    for part in (*proto.graph.node, *proto.graph.initializer):
        part.doc_string = _SECRET
        part.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=_SECRET)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 5))
    proto.graph.value_info.append(helper.make_tensor_value_info("c1", TensorProto.FLOAT, [1, 32, 8, 8]))
    proto.training_info.add().algorithm.name = _SECRET
    return proto


def _written(folder: Path, proto: onnx.ModelProto, target: str) -> Path:
    folder.mkdir()
    onnx.save(proto, folder / "source.onnx")
    return float_file(folder / "source.onnx", load_target(target), folder).model


def test_what_travels_is_what_it_computes_and_nothing_else(tmp_path: Path) -> None:
    file = _written(tmp_path / "a", _exported(), "x86_64")
    data = file.read_bytes()
    assert data == _written(tmp_path / "b", _exported(), "x86_64").read_bytes()
    assert _SECRET.encode() not in data
    proto = onnx.load_model_from_string(data)
    onnx.checker.check_model(proto, full_check=True)
    assert [(one.domain, one.version) for one in proto.opset_import] == [("", tiny.OPSET)]
    assert proto.ir_version == 8  # the format of opset 17
    assert not proto.graph.value_info
    assert not proto.training_info
    tensor = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)
    said = [Session(d, SessionSettings(), "m").run(tensor)[0] for d in (data, wide_classifier().SerializeToString())]
    assert said[0].tobytes() == said[1].tobytes()


def test_operator_sets_of_inner_graphs_stay() -> None:
    inner = helper.make_graph(
        [helper.make_node("Gelu", ["images"], ["y"], domain="com.microsoft")],
        "inner",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    node = helper.make_node("If", ["c"], ["out"], then_branch=inner, else_branch=inner)
    proto = tiny.model([node], [1], {"out": [1]}, {"c": np.array(True)})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert [one.domain for one in bare(proto).opset_import] == ["", "com.microsoft"]


@pytest.mark.parametrize(
    ("target", "suffix", "step"), [("x86_64_avx2", "onnx", "ONNX file"), ("arm64", "ort", "ORT file")]
)
def test_where_float_is_carried_it_travels_as_its_target_likes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, suffix: str, step: str
) -> None:
    # A model that is slower in INT8 for certain is none of a few kilobytes.
    monkeypatch.setattr(golden, "interleaved_latency_ms", lambda *_: [20.0, 10.0])
    monkeypatch.setattr(search_variant, "kernels_ms", lambda model, *_: 20.0 if "carried" in model.name else 10.0)
    path = write_project(tmp_path, model=wide_classifier(), pictures=16)
    build(
        path,
        target,
        tmp_path / "a.edge",
        bundle_version=1,
        variants=Request(sizes=((24, 24),), precisions=frozenset({"fp16"})),
    )
    bundle = Bundle.open(tmp_path / "a.edge")
    assert [(v.name, v.file) for v in bundle.manifest.variants] == [
        (name, f"model.{name}.{suffix}") for name in ("fp32", "fp32.24x24", "fp16")
    ]
    replay_variants(bundle)
    shipped = next(one for one in from_json(bundle.read("report.json")).steps if one.shipped)
    assert shipped.name == step
    assert shipped.size_mb == len(bundle.read(f"model.fp32.{suffix}")) / 1e6
    assert shipped.peak_memory_mb is not None
    config = bundle.read("required_operators_and_types.config").decode()
    assert ("Conv" in config) is (suffix == "ort")
    assert ("is ONNX, which no reduced ONNX Runtime reads" in config) is (suffix == "onnx")
    for variant in bundle.manifest.variants:
        assert any(name.endswith(":Conv") for name in variant.operators)


def test_half_weights_halve_the_file_and_stay_half(tmp_path: Path) -> None:
    model = write_project(tmp_path, model=wide_classifier())
    build(model, "x86_64", tmp_path / "a.edge", variants=Request(precisions=frozenset({"fp32", "fp16"})))
    bundle = Bundle.open(tmp_path / "a.edge")
    half, whole = (len(bundle.read(f"model.{name}.onnx")) for name in ("fp16", "fp32"))
    weights = sum(numpy_helper.to_array(w).size for w in wide_classifier().graph.initializer)
    assert whole - half > 1.8 * weights
    stored = onnx.load_model_from_string(bundle.read("model.fp16.onnx"))
    assert TensorProto.FLOAT16 in {weight.data_type for weight in stored.graph.initializer}
    outputs = []
    for name in ("fp16", "fp32"):
        one = bundle.with_primary(name)
        [(image, _), *_] = one.golden()
        session, prepare = Session.open(one), Prepare.of(one.manifest)
        assert session.replay_golden(one, prepare) == 0
        outputs.append(session.run(prepare.normalise(image))[0].copy())
    assert np.abs(outputs[0] - outputs[1]).max() < 1e-2
    assert np.abs(outputs[0] - outputs[1]).max() > 0


def test_a_model_without_large_weights_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_project(tmp_path, model=tiny.classifier())
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge"), "--with-fp16"]
    assert run(command) == 0
    assert "fp16 IS LEFT OUT because" in capsys.readouterr().out
    assert [v.name for v in Bundle.open(tmp_path / "a.edge").manifest.variants] == ["int8"]


def test_a_weight_beyond_float16_is_refused() -> None:
    proto = wide_classifier()
    weight = next(w for w in proto.graph.initializer if w.name == "w2")
    values = numpy_helper.to_array(weight).copy()
    values[0, 0, 0, 0] = 70_000
    weight.CopyFrom(numpy_helper.from_array(values, "w2"))
    with pytest.raises(ModelError, match="weight 'w2' holds values beyond 65504"):
        with_half_weights(proto)


def test_products_are_quantized_dynamically_and_run_in_integers(tmp_path: Path) -> None:
    model = write_project(tmp_path, model=mixer())
    report = build(model, "x86_64", tmp_path / "a.edge", variants=Request(precisions=frozenset({"int8_dynamic"})))
    assert [(row.name, row.problem) for row in report.variants] == [("int8", None), ("int8_dynamic", None)]
    bundle = Bundle.open(tmp_path / "a.edge")
    dynamic = bundle.manifest.variants[1]
    assert dynamic.precision == "int8_dynamic"
    assert dynamic.integer_mac_share == 1.0
    assert any("MatMulInteger" in name or "DynamicQuantizeMatMul" in name for name in dynamic.operators)
    assert len(bundle.read(dynamic.file)) < 0.6 * onnx.load(tmp_path / "model.onnx").ByteSize()
    replay_variants(bundle)


@pytest.mark.parametrize(("reduce_range", "largest"), [(False, 127), (True, 64)])
def test_dynamic_weights_have_seven_bits_where_products_saturate(
    tmp_path: Path, reduce_range: bool, largest: int
) -> None:
    recipe = Recipe(precision="int8_dynamic", reduce_range=reduce_range)
    made = MAKERS[recipe.precision].write(simplify(mixer(16, 64), tmp_path), {}, recipe, tmp_path / "dynamic.onnx")
    assert sorted(made.macs.values()) == [64 * 3, 16 * 64 * 4 * 64, 16 * 64 * 4 * 64]
    arrays = map(numpy_helper.to_array, onnx.load(made.path).graph.initializer)
    integers = [array for array in arrays if array.dtype == np.int8 and array.ndim == 2]
    assert max(int(np.abs(array.astype(int)).max()) for array in integers) == largest


def test_dynamic_is_never_offered_for_convolutions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_project(tmp_path, model=wide_classifier(), pictures=0)
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge"), "--with-dynamic"]
    assert run(command) == 2
    error = capsys.readouterr().err
    assert "0% of the model's multiply-accumulates are matrix products with weights" in error
    assert "slower than in float; leave it out" in error
