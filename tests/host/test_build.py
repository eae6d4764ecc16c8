"""build: a bundle that keeps what its manifest promises, or an error and nothing changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import msgspec
import numpy as np
import onnxruntime as ort
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.errors import AccuracyGateError, DataError, EdgeError, ModelError, OutputError, SizeGateError, UsageError
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session
from edge_sdk.tasks import make_task
from edge_sdk_tools.build import build
from edge_sdk_tools.host_cpu import host_saturates
from tests.host.images import picture, write_pictures
from tests.host.projects import write_detector, write_project

TARGETS = ["x86_64", "x86_64_avx2", "arm64", "raspberry_pi_4", "raspberry_pi_5", "jetson_orin_nano"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_bundle_keeps_its_promise(tmp_path: Path, target: str) -> None:
    report = build(write_project(tmp_path), target, tmp_path / "tiny.edge")
    bundle = Bundle.open(tmp_path / "tiny.edge")
    manifest = bundle.manifest
    assert manifest.target == target
    assert manifest.variants[0].integer_mac_share == report.integer_mac_share == 1.0
    assert report.agreement.images == 3
    assert report.calibration_images == 9
    assert manifest.onnxruntime.admits(ort.__version__)
    assert "com.microsoft:QLinearConv" in manifest.operators
    assert manifest.provenance.recipe["reduce_range"] is (target == "x86_64_avx2" or host_saturates())
    assert report.reduced_for_host is (host_saturates() and target != "x86_64_avx2")
    assert {f.name for f in manifest.files} == {
        "golden.npz",
        "labels.txt",
        "model.int8.ort",
        "required_operators_and_types.config",
    }
    session = Session.open(bundle)
    session.replay_golden(bundle, Prepare(manifest.input))
    make_task(manifest, len(bundle.labels()), session.output_shapes)


def test_the_command_shows_a_table_and_leaves_only_the_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_detector(tmp_path)
    assert run(["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "cells.edge")]) == 0
    captured = capsys.readouterr()
    for expected in (
        "cells for x86_64",
        "INT8 sees blue",
        "FP32",
        "INT8",
        "detections matched (F1), 3 images",
        "next: edge-sdk run",
    ):
        assert expected in captured.out
    assert captured.err == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "cells.edge",
        "labels.txt",
        "model.onnx",
        "model.toml",
        "pictures",
    ]


def test_the_command_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_project(tmp_path)
    output = str(tmp_path / "a.edge")
    assert run(["build", str(model), "--target", "x86_64", "-o", output, "--bundle-version", "7", "--json"]) == 0
    report = msgspec.json.decode(capsys.readouterr().out)
    assert report["bundle"] == output
    assert report["version"] == 7


def test_a_second_build_replaces_the_first(tmp_path: Path) -> None:
    model = write_project(tmp_path)
    for version in (1, 2):
        build(model, "x86_64", tmp_path / "a.edge", bundle_version=version)
        assert Bundle.open(tmp_path / "a.edge").manifest.version == version
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_signature_that_goes_with_the_old_bundle_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, output = write_project(tmp_path), tmp_path / "a.edge"
    command = ["build", str(model), "--target", "x86_64", "-o", str(output)]
    assert run(command) == run(["keygen", str(tmp_path / "k")]) == 0
    assert "replacing" not in capsys.readouterr().out
    assert run(["sign", str(output), "--key", str(tmp_path / "k")]) == run(command) == 0
    captured = capsys.readouterr()
    assert "replacing what was there" in captured.out
    assert "the signature of the bundle that was replaced is gone; sign it again" in captured.err


def test_evaluation_images_that_calibrated_do_not_count(tmp_path: Path) -> None:
    model = write_project(tmp_path, pictures=6)
    others = write_pictures(tmp_path / "others", 4, first=4)  # two of them are calibration images too
    report = build(model, "x86_64", tmp_path / "a.edge", evaluation=[others])
    assert report.calibration_images == 6
    assert report.agreement.images == 2
    with pytest.raises(DataError, match="every evaluation image is a calibration image too"):
        build(model, "x86_64", tmp_path / "a.edge", evaluation=[tmp_path / "pictures"])


def test_unreadable_images_are_skipped_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_project(tmp_path)
    (tmp_path / "pictures" / "broken.png").write_bytes(b"\x89PNG and then nothing")
    (tmp_path / "pictures" / "empty.jpg").write_bytes(b"")
    (tmp_path / "pictures" / "notes.txt").write_text("not an image, and not counted")
    assert run(["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge")]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "warning: 2 images cannot be read and were skipped: " in captured.err
    assert "broken.png" in captured.err
    assert "calibrated with 9 images" in captured.out


def _no_pictures(folder: Path) -> None:
    for path in (folder / "pictures").iterdir():
        path.unlink()


def _only_broken(folder: Path) -> None:
    _no_pictures(folder)
    (folder / "pictures" / "a.png").write_bytes(b"x")


def _one_picture(folder: Path) -> None:
    _no_pictures(folder)
    cv2.imwrite(str(folder / "pictures" / "a.png"), picture(0))


def _edit(old: str, new: str) -> object:
    def edit(folder: Path) -> None:
        text = (folder / "model.toml").read_text()
        assert old in text
        (folder / "model.toml").write_text(text.replace(old, new))

    return edit


@pytest.mark.parametrize(
    ("change", "family", "expected"),
    [
        (_no_pictures, DataError, "no images in it, expected .jpg"),
        (_only_broken, DataError, "1 files could not be read"),
        (_one_picture, DataError, "one image only, expected 2 or more"),
        (_edit('calibration = "pictures"', ""), UsageError, "no calibration images: give --calibration"),
        (_edit('calibration = "pictures"', 'calibration = "nowhere"'), DataError, "no such folder of images"),
        (_edit("[16, 16]", "[32, 16]"), ModelError, "has shape 1x3x16x16, model.toml says 1x3x16x32"),
        (_edit("[16, 16]", '[16, 16]\ncolor = "GRAY"'), ModelError, "model.toml says 1x1x16x16 (NCHW, GRAY)"),
        (_edit("[data]", "[gates]\nmax_size_mb = 0.001\n[data]"), SizeGateError, "gates.max_size_mb allows 0.001"),
        (_edit("[data]", "[gates]\nint8_min_agreement = 1.0\n[data]"), AccuracyGateError, "INT8 agrees with FP32 on"),
        (
            _edit('"softmax"', '"logits"'),
            ModelError,
            'probabilities already (they sum to 1), expected decoder = "softmax"',
        ),
    ],
)
def test_what_cannot_be_built_leaves_the_old_bundle(
    tmp_path: Path, change: object, family: type[EdgeError], expected: str
) -> None:
    model = write_project(tmp_path, pictures=16)
    build(model, "x86_64", tmp_path / "a.edge", bundle_version=1)
    if expected.startswith("INT8"):
        _make_agreement_fail(tmp_path)
    change(tmp_path)  # type: ignore[operator]
    with pytest.raises(family) as caught:
        build(model, "x86_64", tmp_path / "a.edge", bundle_version=2)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert Bundle.open(tmp_path / "a.edge").manifest.version == 1
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def _make_agreement_fail(folder: Path) -> None:
    """Calibrate with black pictures: every activation of a real one is then far outside the range."""
    _no_pictures(folder)
    for index in range(3):
        cv2.imwrite(str(folder / "pictures" / f"{index}.png"), np.full((16, 16, 3), index, np.uint8))
    _edit("[data]", '[data]\nevaluation = "real"')(folder)  # type: ignore[operator]
    write_pictures(folder / "real", 16, first=50)


def test_a_detector_that_finds_nothing_is_a_failure_and_not_an_agreement_of_one(tmp_path: Path) -> None:
    model = write_detector(tmp_path)
    _no_pictures(tmp_path)
    for index in range(4):
        cv2.imwrite(str(tmp_path / "pictures" / f"{index}.png"), np.full((64, 64, 3), index, np.uint8))
    with pytest.raises(AccuracyGateError, match="the FP32 model finds nothing on 1 evaluation images"):
        build(model, "x86_64", tmp_path / "a.edge")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "expected"),
    [
        (["nowhere.toml", "--target", "x86_64"], 2, "nowhere.toml: no such file"),
        (["model.onnx", "--target", "x86_64"], 2, "expected a model.toml"),
        (["model.toml", "--target", "pi9"], 2, "unknown target 'pi9'"),
        (["model.toml"], 2, "Missing option '--target'"),
        (["model.toml", "--target", "x86_64", "-o", "nowhere/a.edge"], 2, "the folder nowhere does not exist"),
        (["model.toml", "--target", "x86_64", "-o", "labels.txt"], 2, "labels.txt: exists and is not a bundle"),
        (["model.toml", "--target", "x86_64", "-o", "pictures"], 2, "pictures: exists and is not a bundle"),
        (["model.toml", "--target", "x86_64", "-o", ".."], 2, "expected the name of a bundle"),
    ],
)
def test_errors_are_one_line_with_the_right_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    exit_code: int,
    expected: str,
) -> None:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(["build", *arguments]) == exit_code
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1, captured.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    """A limit on the size of written files stands in for the disk's: the same errors come from the same calls."""
    model = write_project(tmp_path)
    build(model, "x86_64", tmp_path / "a.edge", bundle_version=1)
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])));"
        "from edge_sdk.cli.root import run; sys.exit(run(sys.argv[2:]))"
    )
    for limit in ("64", "2500", "4000"):
        arguments = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge")]
        done = subprocess.run(
            [sys.executable, "-c", program, limit, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, (limit, done.stderr)
        assert "no space left on the disk" in done.stderr
        assert done.stderr.count("\n") == 1
        assert Bundle.open(tmp_path / "a.edge").manifest.version == 1
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_path_that_cannot_be_made(tmp_path: Path) -> None:
    model = write_project(tmp_path)
    with pytest.raises(OutputError, match="cannot be written"):
        build(model, "x86_64", Path("/proc/a.edge"))
