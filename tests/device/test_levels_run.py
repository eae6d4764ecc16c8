"""A bundle whose model takes levels of 0-255: run, timed, and refused where the manifest says something else."""

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
import onnx
import pytest
from onnx import TensorProto, helper

from edge_sdk.manifest import InputTensor, Manifest
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session, SessionSettings, onnxruntime_version
from tests.device import tiny
from tests.device.bundles import FILES, edit_manifest, make_manifest, write_bundle

SIDE = 32
SPEC = InputSpec(size_wh=(SIDE, SIDE), std=(255.0, 255.0, 255.0), pad_value=0)
LEVELS = InputTensor("uint8", "NHWC", "RGB")
RED, BLUE = (0, 0, 255), (255, 0, 0)  # BGR


def _takes_levels() -> onnx.ModelProto:
    """The tiny segmenter behind a normalisation of its own."""
    proto = tiny.segmenter(SIDE)
    graph = proto.graph
    graph.node[0].input[0] = "normalised"
    front = [
        helper.make_node("Transpose", ["images"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Cast", ["planes"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "factor"], ["normalised"]),
    ]
    nodes = [*front, *graph.node]
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in graph.initializer}
    cells = {"scores": [1, 3, SIDE // 4, SIDE // 4]}
    factor = {"factor": np.array(1 / 255, np.float32)}
    return tiny.model(nodes, [1, SIDE, SIDE, 3], cells, weights | factor, input_type=TensorProto.UINT8)


def _write(folder: Path, tensor: InputTensor | None, model: onnx.ModelProto) -> Path:
    data = model.SerializeToString()
    image = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    manifest = _manifest(tensor, FILES)
    [output] = Session(data, SessionSettings(), "m").run(Prepare.of(manifest).normalise(image))
    golden = io.BytesIO()
    np.savez_compressed(golden, image_0=image, output_0_0=output)
    labels = b"background\nred\nblue\n"
    files = {**FILES, "model.int8.ort": data, "labels.txt": labels, "golden.npz": golden.getvalue()}
    return write_bundle(folder, _manifest(tensor, files), files)


def _manifest(tensor: InputTensor | None, files: dict[str, bytes]) -> Manifest:
    manifest = make_manifest(files, side=SIDE)
    [variant] = manifest.variants
    return msgspec.structs.replace(
        manifest,
        task="segmentation",
        decoder="logits",
        input=SPEC,
        variants=(msgspec.structs.replace(variant, tensor=tensor),),
        machine="aarch64" if platform.machine() == "aarch64" else "x86_64",
        onnxruntime=msgspec.structs.replace(manifest.onnxruntime, maximum=onnxruntime_version()),
    )


def _write_pictures(folder: Path) -> Path:
    """Of 128x64 pixels, so that there is padding: red and blue, in shares that differ."""
    folder.mkdir()
    image = np.zeros((64, 128, 3), np.uint8)
    for number, red_to in enumerate((16, 64, 96)):
        image[:, :red_to], image[:, red_to:] = RED, BLUE
        cv2.imwrite(str(folder / f"{number}.png"), image)
    return folder


def _edge_sdk(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge_sdk", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)


def _segments(bundle: Path, pictures: Path) -> list[Any]:
    done = _edge_sdk("run", bundle, "--source", pictures)
    assert done.returncode == 0, done.stderr
    return [msgspec.json.decode(line)["segments"] for line in done.stdout.splitlines()]


def test_levels_give_the_results_of_normalised_values(tmp_path: Path) -> None:
    pictures = _write_pictures(tmp_path / "pictures")
    levels = _segments(_write(tmp_path / "levels.edge", LEVELS, _takes_levels()), pictures)
    floats = _segments(_write(tmp_path / "floats.edge", None, tiny.segmenter(SIDE)), pictures)
    assert levels == floats
    assert [{s["label"]: s["share"] for s in one} for one in levels] == [
        {"blue": 0.875, "red": 0.125},
        {"blue": 0.5, "red": 0.5},
        {"blue": 0.25, "red": 0.75},
    ]


def test_a_bundle_from_before_there_were_tensors_runs(tmp_path: Path) -> None:
    bundle = _write(tmp_path / "old.edge", None, tiny.segmenter(SIDE))
    [variant] = msgspec.json.decode((bundle / "manifest.json").read_bytes())["variants"]
    del variant["tensor"]
    edit_manifest(bundle, variants=[variant])
    assert len(_segments(bundle, _write_pictures(tmp_path / "pictures"))) == 3


def test_every_stage_is_timed(tmp_path: Path) -> None:
    done = _edge_sdk("bench", _write(tmp_path / "a.edge", LEVELS, _takes_levels()), "--rounds", 3, "--json")
    assert done.returncode == 0, done.stderr
    assert msgspec.json.decode(done.stdout)["rounds"] == 3


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (None, "takes uint8 (1, 32, 32, 3), the manifest says float32 (1, 3, 32, 32); build the bundle again"),
        (
            {"dtype": "float32", "layout": "NHWC", "color": "RGB"},
            "takes uint8 (1, 32, 32, 3), the manifest says float32 (1, 32, 32, 3); build the bundle again",
        ),
        (
            {"dtype": "uint8", "layout": "NCHW", "color": "RGB"},
            "takes uint8 (1, 32, 32, 3), the manifest says uint8 (1, 3, 32, 32); build the bundle again",
        ),
        ({"dtype": "int8", "layout": "NHWC", "color": "RGB"}, "Invalid enum value 'int8'"),
        ({"dtype": "uint8", "layout": "NHWC"}, "missing required field `color`"),
        (
            {"dtype": "uint8", "layout": "NHWC", "color": "GRAY"},
            "'model.int8.ort' takes GRAY pictures and input.color is RGB",
        ),
        ({"dtype": "uint8", "layout": "NHWC", "color": "BGR"}, "golden input 0 gives other results here"),
    ],
)
def test_a_manifest_that_says_another_tensor_is_refused(tmp_path: Path, tensor: Any, expected: str) -> None:
    bundle = _write(tmp_path / "a.edge", LEVELS, _takes_levels())
    [variant] = msgspec.json.decode((bundle / "manifest.json").read_bytes())["variants"]
    edit_manifest(bundle, variants=[{**variant, "tensor": tensor}])
    done = _edge_sdk("run", bundle, "--source", _write_pictures(tmp_path / "pictures"))
    assert (done.returncode, done.stdout) == (6 if "golden" in expected else 7, "")
    *_, last = done.stderr.splitlines()
    assert expected in last
    assert "Traceback" not in done.stderr
