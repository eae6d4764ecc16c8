"""A bundle with a larger and a smaller model, made by hand for this machine; the larger takes many times as long."""

from __future__ import annotations

import io
import platform
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import helper

from edge_sdk.bundle import Bundle
from edge_sdk.manifest import Variant
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session, SessionSettings, onnxruntime_version
from edge_sdk.stages import Stages
from tests.device import tiny
from tests.device.bundles import FILES, make_manifest, make_variant, write_bundle

LARGE, SMALL = "int8", "int8.8x8"


def write_graded(
    folder: Path,
    *,
    side: int = 16,
    width: int = 4,
    latency_ms: float = 100.0,
    hostile: onnx.ModelProto | None = None,
) -> Path:
    """Write it: `int8` of `side` pixels and `int8.8x8`.

    Args:
        folder: NAME.edge.
        side: of the larger model's input.
        width: channels of both; their square is what a pixel costs.
        latency_ms: the budget.
        hostile: takes the place of the smaller model, of 8 pixels; nobody will ever compare its golden outputs.
    """
    files, variants = {"labels.txt": FILES["labels.txt"]}, list[Variant]()
    for name, pixels in ((LARGE, side), (SMALL, 8)):
        is_hostile = name == SMALL and hostile is not None
        model = hostile.SerializeToString() if is_hostile and hostile else _model(pixels, width)
        variant = make_variant(name, side=pixels, golden=f"golden.{name}.npz")
        variants.append(msgspec.structs.replace(variant, host_latency_ms=pixels**2 / 100))
        files[variant.file] = model
        files[variant.golden.file] = _golden(_model(pixels, width) if is_hostile else model, pixels)
    manifest = msgspec.structs.replace(
        make_manifest(files, side=side),
        variants=tuple(variants),
        latency_budget_ms=latency_ms,
        machine="aarch64" if platform.machine() == "aarch64" else "x86_64",
    )
    span = msgspec.structs.replace(manifest.onnxruntime, maximum=onnxruntime_version())
    return write_bundle(folder, msgspec.structs.replace(manifest, onnxruntime=span), files)


def open_variant(folder: Path, variant: str, threads: int = 1) -> Stages:
    return Stages.open(Bundle.open(folder).led_by(variant), SessionSettings(intra_op_num_threads=threads))


def _model(side: int, width: int) -> bytes:
    random = np.random.default_rng(1)
    weights = {
        "w1": random.normal(0, 0.1, (width, 3, 3, 3)).astype(np.float32),
        "w2": random.normal(0, 0.1, (width, width, 3, 3)).astype(np.float32),
        "w3": random.normal(0, 0.1, (2, width, 1, 1)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["images", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["g"]),
        helper.make_node("Conv", ["g", "w3"], ["c3"]),
        helper.make_node("Flatten", ["c3"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    model: onnx.ModelProto = tiny.model(nodes, [1, 3, side, side], {"probabilities": [1, 2]}, weights)
    return model.SerializeToString()


def _golden(model: bytes, side: int) -> bytes:
    image = np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8)
    [output] = Session(model, SessionSettings(), "m").run(Prepare(InputSpec(size_wh=(side, side))).normalise(image))
    file = io.BytesIO()
    np.savez_compressed(file, image_0=image, output_0_0=output)
    return file.getvalue()
