"""A bundle of a float model as it is, for a first look: nothing is measured, and nothing is promised."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx

import edge_sdk
from edge_sdk.bundle.manifest import Provenance, RuntimeRange, Variant
from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Frame, Inferred
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import SessionSettings, onnxruntime_version
from edge_sdk.inference.session import Session
from edge_sdk.tasks.decoders import make_stage
from edge_sdk_tools.bundle_folder import bundle_folder, described_manifest, golden_file
from edge_sdk_tools.check.gate import check_model
from edge_sdk_tools.graph.profile import host_target
from edge_sdk_tools.importers.describe import Description, describe, write_description
from edge_sdk_tools.quantize.convert import float_file

UNPROVED = "unproved: float, no promise; `edge-sdk build` makes a bundle"
_NOISE_SIDE_PX = 640
_MOST_CONFIDENT = 1.01


def unproved_bundle(model: Path, folder: Path) -> tuple[Path, Description | None]:
    """Write a bundle for this machine into an empty folder, with one float model and labels.

    `model` is a model.toml, or an .onnx file, which is described as by `edge-sdk init`: the description is returned
    too. A ModelError says that it does not pass the check or that no decoder reads it, an IncompatibleError that
    no bundle is for this machine.
    """
    target = load_target(host_target())
    description = None
    if model.suffix != ".toml":
        description = describe(model)
        model = write_description(description, folder)[0]
    spec = load_model_spec(model)
    spec = msgspec.structs.replace(spec, model=os.path.normpath(spec.model))
    checked = check_model(spec, None, description.examined if description else None, is_float=True)
    with bundle_folder(folder / f"{spec.name}.edge") as written:
        source = written.work / "source.onnx"
        onnx.save(checked.proto, source)
        converted = float_file(source, target, written.work)
        noise = np.random.default_rng(0).integers(0, 256, (_NOISE_SIDE_PX, _NOISE_SIDE_PX, 3), np.uint8)
        session, prepare = Session(source.read_bytes(), SessionSettings(), "the model"), Prepare(spec.input)
        inferred = session(prepare(Frame.of(noise)))
        _check_answer(spec, checked.labels, session, inferred)
        data, golden = golden_file("golden.npz", [(prepare.resize(noise), inferred.outputs)])
        variant = Variant(
            file=f"model.fp32{converted.model.suffix}",
            precision="fp32",
            size_wh=spec.input.size_wh,
            golden=golden,
            operators=converted.operators,
            host_latency_ms=0,
        )
        written.add(variant.file, converted.model.read_bytes())
        written.add(golden.file, data)
        written.add_labels(checked.labels)
        version = onnxruntime_version().split("+")[0]
        manifest = described_manifest(
            spec,
            target,
            version=1,
            created_at="1970-01-01T00:00:00Z",  # the same model gives the same bundle, which is tried here only once
            variants=(variant,),
            opset=checked.opset,
            onnxruntime=RuntimeRange(version, version),
            fallback_reason=UNPROVED,
            provenance=Provenance(
                edge_sdk=edge_sdk.__version__,
                libraries={"onnxruntime": version},
                source_sha256=checked.sha256,
                recipe={},
                float_nodes=(),
                calibration_digests=(),
            ),
            files=written.entries,
        )
        written.finish(manifest)
    return written.output, description


def _check_answer(spec: ModelSpec, labels: Sequence[str], session: Session, inferred: Inferred) -> None:
    """Refuse a model whose answer to a picture of noise cannot be one of its decoder's kind."""
    with np.errstate(all="ignore"):
        result = make_stage(spec, labels, session.output_shapes)(inferred)
    if not result.is_finite:
        raise ModelError(f"{spec.model}: its outputs are not finite on a picture of noise; check its weights")
    if result.confidence.max(initial=0) > _MOST_CONFIDENT:
        raise ModelError(
            f"{spec.model}: decoder {spec.decoder} reads confidences of up to {result.confidence.max():.3g}, expected "
            "0-1; correct the decoder, or export the model with its last sigmoid or softmax"
        )
