"""build: a bundle that keeps what its manifest promises, or an error and nothing changed."""

import hashlib
import importlib.metadata
import importlib.util
import re
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.core.errors import DataError, ModelError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session, Stages
from edge_sdk.tasks.decoders import make_stage
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.result import BuildResult
from edge_sdk_tools.build.variants import Request
from edge_sdk_tools.check.gate import check_model
from edge_sdk_tools.datasets import reading
from edge_sdk_tools.graph.profile import host_saturates
from tests.support import models as tiny
from tests.support.logs import refusal
from tests.support.models import MIX, changed, unmixing
from tests.support.program import Cli
from tests.support.projects import CLASSIFIER, DETECTOR, picture, write_labelled, write_pictures, write_project
from tests.support.reports import from_json, only, report_on


@pytest.mark.parametrize("target", ["x86_64", "x86_64_avx2", "arm64", "raspberry_pi_zero_2w"])
def test_a_bundle_keeps_its_promise(tmp_path: Path, target: str) -> None:
    report = build(write_project(tmp_path), target, tmp_path / "tiny.edge")
    bundle = Bundle.open(tmp_path / "tiny.edge")
    manifest = bundle.manifest
    assert (manifest.target, manifest.variants[0].integer_mac_share, report.integer_mac_share) == (target, 1.0, 1.0)
    assert (report.agreement.images, report.calibration_images) == (3, 9)
    assert manifest.onnxruntime.admits(ort.__version__)
    assert "com.microsoft:QLinearConv" in manifest.operators
    recipe = manifest.provenance.recipe
    assert (recipe["format"], recipe["reduce_range"]) == ("QDQ", target == "x86_64_avx2" or host_saturates())
    assert any("has no VNNI" in line for line in report.warnings) is (host_saturates() and target != "x86_64_avx2")
    names = {"golden.npz", "labels.txt", "model.int8.ort", "report.html", "report.json"}
    assert {f.name for f in manifest.files} == {*names, "required_operators_and_types.config"}
    session = Session.open(bundle)
    session.replay_golden(bundle, Prepare.of(manifest))
    make_stage(manifest, len(bundle.labels()), session.output_shapes)


@pytest.mark.sandbox
def test_the_command_shows_a_summary_and_leaves_the_bundle(tmp_path: Path, cli: Cli) -> None:
    model = write_project(tmp_path, DETECTOR, tiny.head_detector(), labels="red\nblue\n")
    captured = cli(0, "build", model, "--target", "x86_64", "-o", tmp_path / "cells.edge")
    for expected in ("cells for x86_64, measured on 3 ", "INT8   difference\n", "(F1)", "/report.html\nnext: "):
        assert expected in captured.out
    assert captured.out.count("\n") <= 13
    # A CPU without VNNI is warned of, too, and a slow build says how far it is.
    assert [line for line in captured.err.splitlines() if "VNNI" not in line and " so far" not in line] == [
        "edge-sdk: warning: too few images to judge much: measured on 3, expected 25 or more",
        "edge-sdk: warning: few images calibrate: 9, give 10 or more, better 100",
    ]
    assert {p.name for p in tmp_path.iterdir()} == {"cells.edge", "labels.txt", "model.onnx", "model.toml", "pictures"}


def test_a_background_that_nobody_named_is_warned_of(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk_tools.arm_cost.counter.counters_folder", lambda _: tmp_path)  # nothing is set up
    model = write_project(tmp_path, labels="background\nb\nc\n")
    captured = cli(0, "build", model, "--target", "raspberry_pi_5", "-o", tmp_path / "a.edge")
    assert "line 1 of 3 is 'background', and model.toml does not say so" in captured.err
    unknown = ("latency on this workstation", "the workstation's; after `edge-sdk arm-cost setup`")
    for expected in (f"runs on ONNX Runtime {ort.__version__}", *unknown):
        assert expected in captured.out
    assert Bundle.open(tmp_path / "a.edge").manifest.distillation is None


def test_a_build_replaces_a_bundle_and_its_signature(tmp_path: Path, cli: Cli) -> None:
    model, output = write_project(tmp_path), tmp_path / "a.edge"
    command = ["build", model, "--target", "x86_64", "-o", output]
    report = msgspec.json.decode(cli(0, *command, "--bundle-version", "7", "--json").out)
    assert (report["bundle"], report["version"]) == (str(output), 7)
    cli(0, "keygen", tmp_path / "k")
    cli(0, "sign", output, "--key", tmp_path / "k")
    captured = cli(0, *command)
    assert "replacing what was there" in captured.out
    assert "the signature of the bundle that was replaced is gone; sign it again" in captured.err
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_evaluation_images_that_calibrated_do_not_count(tmp_path: Path) -> None:
    model = write_project(tmp_path, pictures=6)
    others = write_pictures(tmp_path / "others", 4, first=4)  # two of them are calibration images too
    report = build(model, "x86_64", tmp_path / "a.edge", evaluation=[others])
    assert (report.calibration_images, report.agreement.images) == (6, 2)
    assert "2 of 4 evaluation images are calibration images too: they calibrate, and 2 measure" in report.warnings
    with pytest.raises(DataError, match="every evaluation image is a calibration image too"):
        build(model, "x86_64", tmp_path / "a.edge", evaluation=[tmp_path / "pictures"])


def test_labelled_calibration_images_measure_by_their_labels(tmp_path: Path) -> None:
    model = write_project(tmp_path, pictures=0)
    write_labelled(tmp_path / "pictures", tiny.classifier(), 24)
    report = build(model, "x86_64", tmp_path / "a.edge")
    assert (report.calibration_images, report.images, report.measured_on) == (12, 12, "12 images")
    assert report.quality[0].name == "top-1"
    (tmp_path / "pictures" / "labels.csv").write_text("file,class_id\n100.png,9\n")
    report = build(model, "x86_64", tmp_path / "a.edge")
    assert (report.calibration_images, report.quality) == (18, ())
    assert any("the labels of the calibration images are not read" in line for line in report.warnings)


def test_figures_come_from_images_that_chose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr(reading, "ENOUGH_TO_SPLIT", 40)
    model = write_project(tmp_path)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 40)
    bundle = tmp_path / "a.edge"
    captured = cli(0, "build", model, "--target", "x86_64", "-o", bundle, "--evaluation", data)
    for said in ("measured on 20 images, which chose nothing", "INT8 is ", "20 others chose the recipe"):
        assert said in captured.out
    split = from_json((bundle / "report.json").read_bytes()).split
    parts = [set(part) for part in (split.calibration, split.choice, split.claim)]
    assert [len(part) for part in (*parts, set.union(*parts))] == [12, 20, 20, 52]
    assert set(Bundle.open(bundle).manifest.provenance.calibration_digests) == parts[0]
    assert Bundle.open(bundle).manifest.variants[0].quality.images == 20
    assert "which chose nothing" in (bundle / "report.html").read_text()


def test_unreadable_images_are_skipped_and_named(tmp_path: Path, cli: Cli) -> None:
    model = write_project(tmp_path)
    for path in (tmp_path / "pictures").iterdir():
        path.rename(path.with_name(f"\udcff\n{path.name}"))
    (tmp_path / "pictures" / "\udcff\nbroken.png").write_bytes(b"\x89PNG and then nothing")
    (tmp_path / "pictures" / "empty.jpg").write_bytes(b"")
    (tmp_path / "pictures" / "notes.txt").write_text("not an image, and not counted")
    captured = cli(0, "build", model, "--target", "x86_64", "-o", tmp_path / "a.edge")
    assert captured.err.count("images cannot be read") == 1
    assert re.search("warning: 2 images cannot be read and were skipped: .*broken.png", captured.err)
    assert "calibrated with 9 images" in captured.out


def _student(folder: Path, *, worse: float = 0.0) -> Path:
    """A project with a teacher beside it; `worse` sets how far its weights are from the teacher's."""
    write_project(folder / "teacher", CLASSIFIER.replace('"tiny"', '"teacher"'), pictures=0)
    text = CLASSIFIER + '[teacher]\nmodel = "../teacher/model.toml"\n'
    return write_project(folder / "student", text, changed(3, worse), pictures=16)


def test_a_good_student_is_promised_with_its_figures(tmp_path: Path, cli: Cli) -> None:
    data = write_labelled(tmp_path / "data", tiny.classifier(), 20, wrong=2)
    model, bundle = _student(tmp_path), tmp_path / "a.edge"
    printed = cli(0, "build", model, "--target", "x86_64", "--evaluation", data, "-o", bundle)
    assert "teacher teacher: top-1 90.0%, the teacher's 90.0%" in printed.out
    promised = Bundle.open(bundle).manifest.distillation
    assert (promised.teacher, promised.metric, promised.images, promised.limit) == ("teacher", "top-1", 20, -0.02)
    assert (promised.student, promised.teacher_value, promised.within_noise) == (0.9, 0.9, True)
    assert promised.teacher_sha256 == hashlib.sha256((tmp_path / "teacher" / "model.onnx").read_bytes()).hexdigest()
    assert (promised.low, promised.high) == pytest.approx((-0.0891, 0.0891), abs=1e-4)  # half a case each way, of 22


def test_images_that_calibrated_the_teacher_judge_no_student(tmp_path: Path) -> None:
    model, bundle = _student(tmp_path), tmp_path / "a.edge"
    data = write_pictures(tmp_path / "data", 20, first=100)
    write_pictures(tmp_path / "teacher" / "pictures", 8, first=100)
    build(model, "x86_64", bundle, evaluation=[data], bundle_version=1)
    assert Bundle.open(bundle).manifest.distillation.images == 12
    write_pictures(tmp_path / "teacher" / "pictures", 20, first=100)
    with pytest.raises(DataError, match="every evaluation image calibrated teacher, the teacher; give others"):
        build(model, "x86_64", bundle, evaluation=[data], bundle_version=2)


def test_a_bad_student_leaves_the_old_bundle(tmp_path: Path, cli: Cli) -> None:
    bundle = tmp_path / "a.edge"
    build(_student(tmp_path), "x86_64", bundle, bundle_version=1)
    before, promised = Bundle.open(bundle).digest, Bundle.open(bundle).manifest.distillation
    assert (promised.metric, promised.student, promised.teacher_value) == ("top-1 agreement", 1.0, None)
    model = _student(tmp_path, worse=0.8)
    error = cli(3, "build", model, "--target", "x86_64", "-o", bundle).err
    assert error.count("tiny is not its teacher's equal: top-1 agreement") == error.count("\n") == 1
    assert Bundle.open(bundle).digest == before


# Graphs that are unlike others: odd operators, and those of onnxruntime-extensions.


_OPEN = CLASSIFIER.replace("[data]", "[gates]\nint8_min_agreement = 0\n[data]")  # what INT8 says is compared here


def _built(folder: Path, proto: onnx.ModelProto, text: str = _OPEN, labels: str = "a\nb\nc\n") -> BuildResult:
    path = write_project(folder, text, proto, labels=labels, pictures=16)
    return build(path, "x86_64", folder / "a.edge", bundle_version=1)


def _both(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """First outputs of the bundle and of the model as it was given, on pictures that calibrated nothing."""
    spec = load_model_spec(folder / "model.toml")
    bundle = Bundle.open(folder / "a.edge")
    as_given = Session((folder / "model.onnx").read_bytes(), SessionSettings(graph_level="disabled"), "as given")

    def outputs(session: Session, prepare: Prepare) -> np.ndarray:
        tensors = (prepare.normalise(prepare.resize(picture(index))) for index in range(100, 112))
        return np.stack([session.run(tensor)[0].copy() for tensor in tensors])

    return outputs(Session.open(bundle), Prepare.of(bundle.manifest)), outputs(as_given, Prepare(spec.input))


@pytest.mark.parametrize("name", tiny.ODD_GRAPHS)
def test_int8_says_what_fp32_says(tmp_path: Path, name: str) -> None:
    report = _built(tmp_path, tiny.ODD_GRAPHS[name]())
    got, expected = _both(tmp_path)
    span = float(np.ptp(expected, axis=0).max())
    assert span > 0.02  # a model that says the same of every picture would prove nothing
    assert np.abs(got - expected).max() < 0.1 * span + 0.01
    assert (report.precision, report.integer_mac_share) == ("int8", 1.0)
    kinds = {operator.partition(":")[2] for operator in Bundle.open(tmp_path / "a.edge").manifest.operators}
    assert kinds & {"QLinearConv", "QGemm", "QLinearMatMul"}
    assert any("no convolutions" in doubt for doubt in report.warnings) is (name == "gemm only")
    named = {"dead channel": "'dead' 0, 'seven_everywhere' 7", "tiny values": "'c' -"}.get(name)
    still = [line for line in report.warnings if "with one value on all" in line]
    assert bool(still) is (named is not None)
    assert named is None or named in still[0]


def test_a_model_without_weights_is_carried_in_fp32(tmp_path: Path) -> None:
    report = _built(tmp_path, tiny.no_weights())
    reason = "nothing before its decoding tail has weights, so that nothing of it can be in integers"
    assert (report.precision, report.fallback_reason) == ("fp32", reason)
    got, expected = _both(tmp_path)
    assert np.allclose(got, expected, atol=1e-6)


def test_two_outputs_that_are_one_tensor(tmp_path: Path) -> None:
    text = DETECTOR.replace("[[[16, 16]]]", "[[[16, 16]], [[16, 16]]]")
    assert _built(tmp_path, tiny.heads_from_one_tensor(), text, "red\nblue\n").precision == "int8"
    bundle = Bundle.open(tmp_path / "a.edge")
    prepare = Prepare.of(bundle.manifest)
    first, second = Session.open(bundle).run(prepare.normalise(prepare.resize(picture(3))))
    assert np.array_equal(first, second)
    assert np.ptp(first) > 0


def test_outputs_that_cannot_be_bound(tmp_path: Path) -> None:
    for model, expected in (
        (tiny.input_as_output(), "output 'images' is the input itself"),
        (tiny.output_twice(), "output 'probabilities' is there 2 times"),
    ):
        spec = load_model_spec(write_project(tmp_path, model=model, pictures=0))
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
def test_int8_around_a_custom_operator(tmp_path: Path, target: str, cli: Cli) -> None:
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
    assert OPERATOR in cli(0, "inspect", tmp_path / "a.edge").out


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
    said = "comes with onnxruntime-extensions; that is not installed here; pip install 'onnxruntime-extensions>=0.15'"
    assert said in finding.line


@needs_extensions
def test_an_operator_that_the_package_does_not_have_is_refused(tmp_path: Path) -> None:
    model = write_project(tmp_path, model=unmixing("Frobnicate"))
    with pytest.raises(ModelError, match=r"model\.onnx: ONNX Runtime .* ai\.onnx\.contrib:Frobnicate"):
        build(model, "x86_64", tmp_path / "a.edge")
    assert not (tmp_path / "a.edge").exists()
