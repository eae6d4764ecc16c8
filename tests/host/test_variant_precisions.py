"""Half weights and dynamic INT8: of use for some models, and refused or left out for the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from edge_sdk.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.errors import ModelError, UsageError
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session
from edge_sdk_tools.build import build
from edge_sdk_tools.quantize import simplify
from edge_sdk_tools.runtime_replay import replay_variants
from edge_sdk_tools.variants import Request
from edge_sdk_tools.variants.dynamic import product_work
from edge_sdk_tools.variants.half import convert_half, with_half_weights
from tests.device import tiny
from tests.host.projects import write_project
from tests.host.variant_models import mixer, wide_classifier


def test_half_weights_halve_the_file_and_stay_half(tmp_path: Path) -> None:
    model = write_project(tmp_path, model=wide_classifier())
    build(model, "x86_64", tmp_path / "a.edge", variants=Request(fp32=True, fp16=True))
    bundle = Bundle.open(tmp_path / "a.edge")
    half, whole = (len(bundle.read(f"model.{name}.onnx")) for name in ("fp16", "fp32"))
    weights = sum(numpy_helper.to_array(w).size for w in wide_classifier().graph.initializer)
    assert whole - half > 1.8 * weights
    outputs = []
    for name in ("fp16", "fp32"):
        one = bundle.led_by(name)
        [(image, _), *_] = one.golden()
        outputs.append(Session.open(one).run(Prepare.of(one.manifest).normalise(image))[0].copy())
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


def test_only_large_weights_are_stored_in_half_and_cast_back(tmp_path: Path) -> None:
    proto = with_half_weights(wide_classifier())
    kinds = {w.name: w.data_type for w in proto.graph.initializer}
    assert kinds == {
        "w1_float16": TensorProto.FLOAT16,
        "w2_float16": TensorProto.FLOAT16,
        "w3": TensorProto.FLOAT,
    }
    onnx.checker.check_model(proto)
    onnx.save(proto, tmp_path / "half.onnx")
    (tmp_path / "work").mkdir()
    assert "ai.onnx:Cast" in convert_half(tmp_path / "half.onnx", tmp_path / "work").operators


def test_products_are_quantized_dynamically_and_run_in_integers(tmp_path: Path) -> None:
    model = write_project(tmp_path, model=mixer())
    report = build(model, "x86_64", tmp_path / "a.edge", variants=Request(dynamic=True))
    assert [(row.name, row.problem) for row in report.variants] == [("int8", None), ("int8_dynamic", None)]
    bundle = Bundle.open(tmp_path / "a.edge")
    dynamic = bundle.manifest.variants[1]
    assert dynamic.precision == "int8_dynamic"
    assert dynamic.integer_mac_share == 1.0
    assert any("MatMulInteger" in name or "DynamicQuantizeMatMul" in name for name in dynamic.operators)
    assert len(bundle.read(dynamic.file)) < 0.6 * onnx.load(tmp_path / "model.onnx").ByteSize()
    replay_variants(bundle)


def test_dynamic_is_never_offered_for_convolutions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_project(tmp_path, model=wide_classifier(), pictures=0)
    with pytest.raises(UsageError, match="0% of the model's multiply-accumulates are matrix products with weights"):
        build(model, "x86_64", tmp_path / "a.edge", variants=Request(dynamic=True))
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge"), "--with-dynamic"]
    assert run(command) == 2
    assert "slower than in float; leave it out" in capsys.readouterr().err


def test_the_work_of_products_is_counted(tmp_path: Path) -> None:
    work = product_work(simplify(mixer(16, 64), tmp_path).proto)
    tokens, width = 16, 64
    assert sorted(work.macs.values()) == [width * 3, tokens * width * 4 * width, tokens * width * 4 * width]
    assert work.total == sum(work.macs.values()) + tokens * width * 3 * 16
    assert product_work(simplify(wide_classifier(), tmp_path).proto).share == 0.0
