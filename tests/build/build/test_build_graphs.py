"""Builds of graphs that are unlike others: odd operators, and those of onnxruntime-extensions."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.bundle.target import load_target
from edge_sdk.cli.root import run
from edge_sdk.core.errors import ModelError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from edge_sdk.inference.stages import Stages
from edge_sdk_tools.arm_cost.estimate import board_counter
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.result import BuildResult
from edge_sdk_tools.build.variants import Request
from edge_sdk_tools.check.gate import check_model
from tests.support import models as tiny
from tests.support.logs import refusal
from tests.support.models import MIX, unmixing
from tests.support.projects import CLASSIFIER, DETECTOR, picture, write_project
from tests.support.reports import only, report_on

_OPEN = CLASSIFIER.replace("[data]", "[gates]\nint8_min_agreement = 0\n[data]")  # what INT8 says is compared here


def _built(folder: Path, proto: onnx.ModelProto, text: str = _OPEN) -> BuildResult:
    labels = "a\nb\nc\n" if text != DETECTOR else "red\nblue\n"
    path = write_project(folder, text, proto, labels=labels, pictures=16)
    return build(path, "x86_64", folder / "a.edge", bundle_version=1)


def _both(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """First outputs of the bundle and of the model as it was given, on pictures that calibrated nothing."""
    spec = load_model_spec(folder / "model.toml")
    bundle = Bundle.open(folder / "a.edge")
    as_given = Session((folder / "model.onnx").read_bytes(), SessionSettings(graph_level="disabled"), "as given")
    models = ((Session.open(bundle), Prepare.of(bundle.manifest)), (as_given, Prepare(spec.input)))
    rows: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for index in range(100, 112):
        for (session, prepare), found in zip(models, rows, strict=True):
            found.append(session.run(prepare.normalise(prepare.resize(picture(index))))[0].copy())
    return np.stack(rows[0]), np.stack(rows[1])


@pytest.mark.parametrize("name", tiny.ODD_GRAPHS)
def test_int8_says_what_fp32_says(tmp_path: Path, name: str) -> None:
    report = _built(tmp_path, tiny.ODD_GRAPHS[name]())
    got, expected = _both(tmp_path)
    span = float(np.ptp(expected, axis=0).max())
    assert span > 0.02  # a model that says the same of every picture would prove nothing
    assert np.abs(got - expected).max() < 0.1 * span + 0.01
    assert report.precision == "int8"
    assert report.integer_mac_share == 1.0
    kinds = {operator.partition(":")[2] for operator in Bundle.open(tmp_path / "a.edge").manifest.operators}
    assert kinds & {"QLinearConv", "QGemm", "QLinearMatMul"}
    assert any("no convolutions" in doubt for doubt in report.warnings) is (name == "gemm only")
    named = {"dead channel": "'dead' 0, 'seven_everywhere' 7", "tiny values": "'c' -"}.get(name)
    still = [line for line in report.warnings if "with one value on all" in line]
    assert bool(still) is (named is not None)
    assert named is None or named in still[0]


def test_a_model_without_weights_is_carried_in_fp32(tmp_path: Path) -> None:
    report = _built(tmp_path, tiny.no_weights())
    assert report.precision == "fp32"
    assert report.fallback_reason == (
        "nothing before its decoding tail has weights, so that nothing of it can be in integers"
    )
    got, expected = _both(tmp_path)
    assert np.allclose(got, expected, atol=1e-6)


def test_two_outputs_that_are_one_tensor(tmp_path: Path) -> None:
    text = DETECTOR.replace("[[[16, 16]]]", "[[[16, 16]], [[16, 16]]]")
    path = write_project(tmp_path, text, tiny.heads_from_one_tensor(), labels="red\nblue\n", pictures=16)
    report = build(path, "x86_64", tmp_path / "a.edge", bundle_version=1)
    assert report.precision == "int8"
    bundle = Bundle.open(tmp_path / "a.edge")
    prepare = Prepare.of(bundle.manifest)
    first, second = Session.open(bundle).run(prepare.normalise(prepare.resize(picture(3))))
    assert np.array_equal(first, second)
    assert np.ptp(first) > 0


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (tiny.input_as_output, "output 'images' is the input itself"),
        (tiny.output_twice, "output 'probabilities' is there 2 times"),
    ],
)
def test_outputs_that_cannot_be_bound(tmp_path: Path, make: Callable[[], onnx.ModelProto], expected: str) -> None:
    spec = load_model_spec(write_project(tmp_path, model=make(), pictures=0))
    assert expected in refusal(ModelError, check_model, spec, None)


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
def test_int8_around_a_custom_operator(tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
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
