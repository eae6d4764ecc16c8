"""A segmenter in a bundle, run and timed as a user does."""

from __future__ import annotations

import io
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session, SessionSettings, onnxruntime_version
from tests.device import tiny
from tests.device.bundles import FILES, make_manifest, write_bundle

SIDE = 32
SPEC = InputSpec(size_wh=(SIDE, SIDE), std=(255.0, 255.0, 255.0), pad_value=0)
RED, BLUE = (0, 0, 255), (255, 0, 0)  # BGR


def _write_segmenter(folder: Path, *, argmax: bool, labels: str = "background\nred\nblue\n") -> Path:
    model = tiny.segmenter(SIDE, argmax=argmax).SerializeToString()
    image = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    [output] = Session(model, SessionSettings(), "m").run(Prepare(SPEC).normalise(image))
    golden = io.BytesIO()
    np.savez_compressed(golden, image_0=image, output_0_0=output)
    files = {**FILES, "model.int8.ort": model, "labels.txt": labels.encode(), "golden.npz": golden.getvalue()}
    manifest = make_manifest(files, side=SIDE)
    manifest = msgspec.structs.replace(
        manifest,
        task="segmentation",
        decoder="argmax" if argmax else "logits",
        input=SPEC,
        machine="aarch64" if platform.machine() == "aarch64" else "x86_64",
        onnxruntime=msgspec.structs.replace(manifest.onnxruntime, maximum=onnxruntime_version()),
    )
    return write_bundle(folder, manifest, files)


def _write_pictures(folder: Path) -> Path:
    """Of 128x64 pixels: all black, then with the left half red, then with the right quarter blue as well."""
    folder.mkdir()
    image = np.zeros((64, 128, 3), np.uint8)
    cv2.imwrite(str(folder / "0.png"), image)
    image[:, :64] = RED
    cv2.imwrite(str(folder / "1.png"), image)
    image[:, 96:] = BLUE
    cv2.imwrite(str(folder / "2.png"), image)
    return folder


def _edge_sdk(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edge_sdk", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


@pytest.mark.parametrize("argmax", [False, True])
def test_pictures_become_lines_of_shares(tmp_path: Path, argmax: bool) -> None:
    bundle = _write_segmenter(tmp_path / "tiny.edge", argmax=argmax)
    pictures = _write_pictures(tmp_path / "pictures")
    done = _edge_sdk("run", bundle, "--source", pictures, "--annotate", tmp_path / "out.mp4")
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert [r["frame"] for r in results] == [{"width": 128, "height": 64}] * 3
    shares = [[(s["label"], s["share"]) for s in r["segments"]] for r in results]
    assert shares == [
        [("background", 1.0)],
        [("background", 0.5), ("red", 0.5)],
        [("red", 0.5), ("background", 0.25), ("blue", 0.25)],
    ]
    assert cv2.VideoCapture(str(tmp_path / "out.mp4")).get(cv2.CAP_PROP_FRAME_COUNT) >= 3


def test_a_bundle_whose_labels_are_another_models_is_refused(tmp_path: Path) -> None:
    bundle = _write_segmenter(tmp_path / "tiny.edge", argmax=False, labels="red\nblue\n")
    done = _edge_sdk("run", bundle, "--source", _write_pictures(tmp_path / "pictures"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "labels has 2 lines, the model has 3 classes (output 1x3x8x8)" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_stage_of_a_segmenter_is_timed(tmp_path: Path) -> None:
    bundle = _write_segmenter(tmp_path / "tiny.edge", argmax=False)
    done = _edge_sdk("bench", bundle, "--json")
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout)
    assert report["stages"]["decode outputs"]["p50_ms"] > 0
    assert report["bundle"] == "tiny 1"
