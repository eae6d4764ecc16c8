"""A small bundle for tests: any bytes for a model, a manifest that fits them."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import msgspec
import numpy as np

from edge_sdk.manifest import (
    FileEntry,
    Golden,
    Manifest,
    Provenance,
    RuntimeRange,
    Variant,
    encode_manifest,
)
from edge_sdk.model_spec import ClassificationSpec, DetectionSpec, InputSpec, Thresholds


def golden_bytes() -> bytes:
    """One 4x4 image and one output."""
    file = io.BytesIO()
    np.savez_compressed(file, image_0=np.zeros((8, 8, 3), np.uint8), output_0_0=np.array([[0.25, 0.75]], np.float32))
    return file.getvalue()


FILES = {"model.int8.ort": b"not really a model", "labels.txt": b"cat\ndog\n", "golden.npz": golden_bytes()}


def make_variant(name: str = "int8", *, side: int = 8, golden: str = "golden.npz") -> Variant:
    return Variant(
        file=f"model.{name}.ort",
        precision="int8" if name.startswith("int8") else "fp32",
        size_wh=(side, side),
        golden=Golden(file=golden, count=1, absolute=0.0, relative=0.0),
        operators=("ai.onnx:Conv",),
        host_latency_ms=1.0,
    )


def make_manifest(files: dict[str, bytes] = FILES, *, side: int = 8) -> Manifest:
    return Manifest(
        name="tiny",
        version=1,
        created_at="2026-01-01T00:00:00Z",
        target="x86_64",
        machine="x86_64",
        providers=("CPUExecutionProvider",),
        intra_op_num_threads=1,
        allow_spinning=False,
        memory_mb=512,
        task="classification",
        decoder="softmax",
        input=InputSpec(size_wh=(side, side)),
        thresholds=Thresholds(),
        classification=ClassificationSpec(),
        detection=DetectionSpec(),
        labels="labels.txt",
        variants=(make_variant(side=side),),
        opset=13,
        onnxruntime=RuntimeRange(minimum="1.20.1", maximum="1.31.1"),
        operators=("ai.onnx:Conv",),
        latency_budget_ms=100.0,
        provenance=Provenance(
            edge_sdk="0.1.0",
            libraries={},
            source_sha256="0" * 64,
            recipe={},
            float_nodes=(),
            calibration_digests=("0" * 16,),
        ),
        files=tuple(FileEntry(n, len(b), hashlib.sha256(b).hexdigest()) for n, b in sorted(files.items())),
    )


def write_bundle(folder: Path, manifest: Manifest | None = None, files: dict[str, bytes] = FILES) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "manifest.json").write_bytes(encode_manifest(manifest or make_manifest(files)))
    return folder


def edit_manifest(folder: Path, **changes: object) -> None:
    """Change top-level keys of manifest.json as a stranger with an editor would; None removes a key."""
    path = folder / "manifest.json"
    document = msgspec.json.decode(path.read_bytes())
    for key, value in changes.items():
        document.pop(key) if value is None else document.update({key: value})
    path.write_bytes(msgspec.json.encode(document))
