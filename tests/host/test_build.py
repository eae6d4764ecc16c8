"""build: a bundle that keeps what its manifest promises, or an error and nothing changed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnxruntime as ort
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.errors import DataError
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session
from edge_sdk.tasks import make_task
from edge_sdk_tools.build import build
from edge_sdk_tools.host_cpu import host_saturates
from tests.host.images import write_pictures
from tests.host.projects import write_detector, write_project

TARGETS = ["x86_64", "x86_64_avx2", "arm64", "raspberry_pi_4", "raspberry_pi_5", "raspberry_pi_zero_2w"]


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
        "report.html",
        "report.json",
        "required_operators_and_types.config",
    }
    session = Session.open(bundle)
    session.replay_golden(bundle, Prepare.of(manifest))
    make_task(manifest, len(bundle.labels()), session.output_shapes)


def test_the_command_shows_a_table_and_leaves_only_the_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_detector(tmp_path)
    assert run(["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "cells.edge")]) == 0
    captured = capsys.readouterr()
    for expected in (
        "cells for x86_64, measured on 3 images",
        "INT8 sees blue",
        "FP32",
        "INT8",
        "detections matched (F1)",
        "next: edge-sdk run",
    ):
        assert expected in captured.out
    assert captured.err.splitlines() == [
        "edge-sdk: warning: too few images to judge much: 3, give 25 or more",
        "edge-sdk: warning: few images calibrate: 9, give 10 or more, better 100",
    ]
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


def test_a_background_that_nobody_named_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_project(tmp_path, labels="background\nb\nc\n")
    assert run(["build", str(model), "--target", "arm64", "-o", str(tmp_path / "a.edge")]) == 0
    captured = capsys.readouterr()
    assert 'the first label is "background"' in captured.err
    assert "copy it to the device" in captured.out or "next: edge-sdk run" in captured.out
    assert f"runs on ONNX Runtime {ort.__version__}" in captured.out


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
    assert len([line for line in captured.err.splitlines() if "few images" not in line]) == 1
    assert "warning: 2 images cannot be read and were skipped: " in captured.err
    assert "broken.png" in captured.err
    assert "calibrated with 9 images" in captured.out
