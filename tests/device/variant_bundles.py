"""A bundle of several models for tests: real, tiny, and each says something else of every picture."""

from __future__ import annotations

import io
import platform
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from edge_sdk.manifest import Agreement, Manifest, Quality, Variant
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session, SessionSettings, onnxruntime_version
from tests.device import tiny
from tests.device.bundles import FILES, make_manifest, make_variant, write_bundle

SIDES = {"int8": 16, "int8.8x8": 8, "fp32": 16}
AGREEMENTS = {"int8": 0.95, "int8.8x8": 0.8}
"""With FP32, by name."""
INPUT = InputSpec(size_wh=(16, 16), std=(255.0, 255.0, 255.0))


def variant_model(name: str, side: int) -> bytes:
    """Each says something else of every picture, so that it shows which one ran."""
    model = tiny.classifier(classes=2, size=side)
    bias = next(w for w in model.graph.initializer if w.name == "b2")
    values = np.array([list(SIDES).index(name), 0], np.float32)
    bias.raw_data = values.tobytes()
    return model.SerializeToString()


def _golden(model: bytes, side: int) -> bytes:
    image = np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8)
    sized = msgspec.structs.replace(INPUT, size_wh=(side, side))
    outputs = Session(model, SessionSettings(), "m").run(Prepare(sized).normalise(image))
    file = io.BytesIO()
    np.savez_compressed(file, image_0=image, output_0_0=outputs[0])
    return file.getvalue()


def write_variants(folder: Path, qualities: Mapping[str, Quality] | None = None) -> Path:
    """Write three variants that agree with FP32 as `AGREEMENTS` has it, with `qualities` by labels."""
    files, variants = {"labels.txt": FILES["labels.txt"]}, list[Variant]()
    for name, side in SIDES.items():
        model = variant_model(name, side)
        variant = make_variant(name, side=side, golden=f"golden.{name}.npz")
        files[variant.file] = model
        files[variant.golden.file] = _golden(model, side)
        by_labels = (qualities or {}).get(name)
        variants.append(msgspec.structs.replace(variant, agreement=_agreement(name), quality=by_labels))
    manifest = msgspec.structs.replace(make_manifest(files), input=INPUT, variants=tuple(variants))
    return write_bundle(folder, _for_here(manifest), files)


def _agreement(name: str) -> Agreement | None:
    value = AGREEMENTS.get(name)
    if value is None:
        return None
    return Agreement(metric="top1_agreement", value=value, low=value, high=value, images=50, reference_count=50)


def _for_here(manifest: Manifest) -> Manifest:
    span = msgspec.structs.replace(manifest.onnxruntime, maximum=onnxruntime_version())
    machine = "aarch64" if platform.machine() == "aarch64" else "x86_64"
    return msgspec.structs.replace(manifest, onnxruntime=span, machine=machine)
