"""Models with operators of onnxruntime-extensions: built like any other, INT8 around them, and run by the device."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.target import load_target
from edge_sdk.cli.root import run
from edge_sdk.core.errors import ModelError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from edge_sdk.inference.stages import Stages
from edge_sdk_tools.arm_cost.estimate import board_counter
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.variants import Request
from tests.support import models as tiny
from tests.support.models import MIX, unmixing
from tests.support.projects import write_project
from tests.support.reports import only, report_on

needs_extensions = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_extensions") is None, reason="onnxruntime-extensions is not installed here"
)
OPERATOR = "ai.onnx.contrib:Inverse"


def _expected(image: np.ndarray) -> np.ndarray:
    """Without the operator: float32 (1, 3), of a uint8 BGR image."""
    pixels = np.linalg.inv(MIX.astype(np.float64)) @ (image[..., ::-1].reshape(-1, 3).T / 255)
    plain = Session(tiny.classifier().SerializeToString(), SessionSettings(), "plain")
    return plain.run(np.ascontiguousarray(pixels.reshape(1, 3, 16, 16), np.float32))[0].copy()


@needs_extensions
@pytest.mark.parametrize("target", ["x86_64", "arm64"])
def test_int8_around_a_custom_operator_says_what_fp32_says_without_it(
    tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_project(tmp_path, model=unmixing(), pictures=24)
    report = build(model, target, tmp_path / "a.edge", variants=Request(precisions=frozenset({"fp32", "fp16"})))
    assert report.precision == "int8", report.fallback_reason
    manifest = Bundle.open(tmp_path / "a.edge").manifest
    assert manifest.variants[0].integer_mac_share == 1.0
    package = "onnxruntime-extensions"
    assert manifest.provenance.libraries[package] == importlib.metadata.version(package)
    # FP16 was made too, and left out: of so small a model halves save nothing.
    assert [variant.precision for variant in manifest.variants] == ["int8", "fp32"]
    assert all(OPERATOR in variant.operators for variant in manifest.variants)
    random = np.random.default_rng(2)
    for variant, tolerance in zip(manifest.variants, (0.05, 1e-5), strict=True):
        bundle = Bundle.open(tmp_path / "a.edge").with_primary(variant.name)
        session = Session.open(bundle)
        for _ in range(5):
            image = random.integers(0, 256, (16, 16, 3), np.uint8)
            [found] = session.run(Prepare.of(bundle.manifest).normalise(image))
            assert np.abs(found - _expected(image)).max() < tolerance
    Stages.open(Bundle.open(tmp_path / "a.edge"))  # replays golden
    capsys.readouterr()
    assert run(["inspect", str(tmp_path / "a.edge")]) == 0
    assert OPERATOR in capsys.readouterr().out


def test_nothing_is_counted_for_a_board_that_lacks_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk_tools.arm_cost.estimate.find_counter", lambda: "a counter")
    target = load_target("raspberry_pi_4")
    assert board_counter(target, tiny.classifier()) == "a counter"
    assert board_counter(target, unmixing()) is None


@needs_extensions
def test_check_says_that_the_device_needs_the_package(tmp_path: Path) -> None:
    report = report_on(tmp_path, unmixing(), size=16)
    finding = only(report, "custom-operator")
    assert (report.passed, finding.severity, finding.where) == (True, "warning", "unmix")
    assert "ai.onnx.contrib.Inverse, which comes with onnxruntime-extensions; the device needs that too" in finding.what


def test_without_the_package_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk_tools.check.operators.has_extensions", lambda: False)
    report = report_on(tmp_path, unmixing(), size=16)
    finding = only(report, "custom-operator")
    assert (report.passed, finding.severity) == (False, "error")
    assert "comes with onnxruntime-extensions; that is not installed here" in finding.what
    assert finding.next_step == "pip install 'onnxruntime-extensions>=0.15'"


@needs_extensions
def test_an_operator_that_the_package_does_not_have_is_refused(tmp_path: Path) -> None:
    model = write_project(tmp_path, model=unmixing("Frobnicate"))
    with pytest.raises(ModelError, match=r"model\.onnx: ONNX Runtime .* ai\.onnx\.contrib:Frobnicate"):
        build(model, "x86_64", tmp_path / "a.edge")
    assert not (tmp_path / "a.edge").exists()
