"""What a build writes into its bundle: each model with its golden inputs, the operators of all, and the manifest."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import cv2
import numpy as np
import onnxruntime as ort

import edge_sdk
from edge_sdk.bundle.manifest import Difference, Manifest, Provenance, Quality, RuntimeRange, Variant
from edge_sdk.core.frame import Image, Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.bundle_folder import BundleFolder
from edge_sdk_tools.evaluate.model import DIGEST_LENGTH
from edge_sdk_tools.graph.profile import extension_nodes
from edge_sdk_tools.prove.golden import make_golden
from edge_sdk_tools.quantize.convert import operators_config
from edge_sdk_tools.report.collect import Steps
from edge_sdk_tools.search.variant import ModelVariant

OPERATORS_FILE = "required_operators_and_types.config"
LABELS_FILE = "labels.txt"
_ORT_SUFFIX = ".ort"


def add_variants(folder: BundleFolder, made: Sequence[ModelVariant]) -> tuple[Variant, ...]:
    """Write the models that have no problem.

    Returns:
        What the manifest says of them, in the same order.
    """
    carried = [one for one in made if one.problem is None]
    variants = tuple(_add(folder, one, is_first=index == 0) for index, one in enumerate(carried))
    folder.add(OPERATORS_FILE, _operators([one.converted.model for one in carried], variants, folder.work).encode())
    return variants


def _operators(models: Sequence[Path], variants: Sequence[Variant], work: Path) -> str:
    """What a reduced ONNX Runtime needs; it reads ORT format alone, and so for ONNX files there is nothing to say."""
    whole = [v.file for v, model in zip(variants, models, strict=True) if model.suffix != _ORT_SUFFIX]
    notes = "".join(f"# {file} is ONNX, which no reduced ONNX Runtime reads: a whole one runs it\n" for file in whole)
    return notes + operators_config([model for model in models if model.suffix == _ORT_SUFFIX], work)


def _add(folder: BundleFolder, one: ModelVariant, *, is_first: bool) -> Variant:
    session, floats = one.fp32.clone(), Prepare(one.spec.input)

    def fp32_of_the_same_size(resized: Image) -> Sequence[Tensor]:
        return session.run(floats.normalise(resized))

    data, golden = make_golden(
        Prepare(one.spec.input, one.tensor),
        one.onnx,
        one.proof.images,
        "golden.npz" if is_first else f"golden.{one.name}.npz",
        fp32_of_the_same_size if one.recipe.is_integer else None,
    )
    is_reference = one.precision == "fp32" and not one.is_resized
    variant = Variant(
        file=f"model.{one.name}{one.converted.model.suffix}",
        precision=one.precision,
        size_wh=one.spec.input.size_wh,
        golden=golden,
        operators=one.converted.operators,
        host_latency_ms=one.proof.latency_ms,
        quality=_quality(one),
        agreement=None if is_reference else one.agreement or one.proof.agreement,
        integer_mac_share=one.integer_mac_share,
        estimate=one.estimate,
        tensor=one.tensor,
    )
    folder.add(variant.file, one.converted.model.read_bytes())
    folder.add(golden.file, data)
    return variant


def _quality(one: ModelVariant) -> Quality | None:
    figure = next(iter(one.beside_first.quality), None)
    if figure is None or figure.reference is None:
        return None
    value, paired = figure.value, figure.difference
    difference = None if paired is None else Difference("fp32", paired.value, paired.low, paired.high)
    images = one.beside_first.images
    return Quality(figure.name, value.value, value.low, value.high, figure.reference.value, images, difference)


def manifest_of(
    steps: Steps, variants: tuple[Variant, ...], folder: BundleFolder, runtimes: RuntimeRange, bundle_version: int
) -> Manifest:
    """What a device needs to know, from what the steps gave."""
    spec, target = steps.spec, steps.model.target
    return Manifest(
        name=spec.name,
        version=bundle_version,
        created_at=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        target=target.name,
        machine=target.machine,
        providers=tuple(target.providers),
        provider_options=target.provider_options,
        intra_op_num_threads=target.intra_op_num_threads,
        allow_spinning=target.allow_spinning,
        memory_mb=target.memory_mb,
        task=spec.task,
        decoder=spec.decoder,
        input=spec.input,
        thresholds=spec.thresholds,
        classification=spec.classification,
        detection=spec.detection,
        labels=LABELS_FILE,
        variants=variants,
        opset=steps.checked.opset,
        onnxruntime=runtimes,
        operators=tuple(sorted({name for variant in variants for name in variant.operators})),
        fallback_reason=steps.search.fallback_reason,
        distillation=steps.distilled.promise if steps.distilled else None,
        latency_budget_ms=steps.model.latency_budget_ms,
        provenance=_provenance(steps),
        files=folder.entries,
    )


def _provenance(steps: Steps) -> Provenance:
    extensions = ("onnxruntime-extensions",) if extension_nodes(steps.checked.proto) else ()
    recipe = steps.first.recipe
    return Provenance(
        edge_sdk=edge_sdk.__version__,
        libraries={
            "numpy": np.__version__,
            "onnx": version("onnx"),
            "onnxruntime": ort.__version__,
            "opencv": cv2.__version__,
            **{name: version(name) for name in extensions},
        },
        source_sha256=steps.checked.sha256,
        recipe={**recipe.settings, "input": steps.input.text} if recipe.is_integer else {},
        float_nodes=steps.first.float_nodes,
        calibration_digests=tuple(i.sha256[:DIGEST_LENGTH] for i in steps.images.calibration.images),
    )
