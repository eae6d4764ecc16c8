"""What a build leaves: the files of its bundle, the manifest, and the result for the person who built."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Literal

import cv2
import msgspec
import numpy as np
import onnxruntime as ort

import edge_sdk
from edge_sdk.bundle.manifest import (
    OPERATORS_FILE,
    Agreement,
    Difference,
    Distillation,
    Manifest,
    Provenance,
    Quality,
    RuntimeRange,
    Variant,
)
from edge_sdk_tools.bundle_folder import BundleFolder, Replaced, described_manifest
from edge_sdk_tools.evaluate.model import DIGEST_LENGTH
from edge_sdk_tools.evaluate.statistics import Figure
from edge_sdk_tools.graph.profile import extension_nodes
from edge_sdk_tools.jobs.runner import JobRunner
from edge_sdk_tools.prove.golden import GOLDEN_IMAGES, make_golden
from edge_sdk_tools.prove.parity import Sample
from edge_sdk_tools.quantize.convert import operators_config
from edge_sdk_tools.report.collect import Steps
from edge_sdk_tools.report.schema import BuildReport
from edge_sdk_tools.search.shipped_form import InputTrial
from edge_sdk_tools.search.variant import ModelVariant

_ORT_SUFFIX = ".ort"


def add_variants(folder: BundleFolder, made: Sequence[ModelVariant]) -> tuple[Variant, ...]:
    """Write the models that have no problem; return what the manifest says of them, in the same order."""
    carried = [one for one in made if one.problem is None]
    variants = tuple(_add(folder, one, is_first=index == 0) for index, one in enumerate(carried))
    whole = [variant.file for variant in variants if not variant.file.endswith(_ORT_SUFFIX)]
    notes = "".join(f"# {file} is ONNX, which no reduced ONNX Runtime reads: a whole one runs it\n" for file in whole)
    models = [one.converted.model for one in carried if one.converted.model.suffix == _ORT_SUFFIX]
    folder.add(OPERATORS_FILE, (notes + operators_config(models, folder.work)).encode())
    return variants


def _add(folder: BundleFolder, one: ModelVariant, *, is_first: bool) -> Variant:
    data, golden = make_golden(
        one.spec.input,
        one.tensor,
        one.onnx,
        [image.read() for image in one.proof.images.spread(GOLDEN_IMAGES).images],
        "golden.npz" if is_first else f"golden.{one.name}.npz",
        one.fp32.clone() if one.recipe.is_integer else None,
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
    steps: Steps,
    created_at: str,
    variants: tuple[Variant, ...],
    folder: BundleFolder,
    runtimes: RuntimeRange,
    bundle_version: int,
) -> Manifest:
    """Return what a device needs to know, from what the steps gave."""
    extensions = ("onnxruntime-extensions",) if extension_nodes(steps.checked.proto) else ()
    recipe = steps.variants[0].recipe
    provenance = Provenance(
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
        float_nodes=steps.variants[0].float_nodes,
        calibration_digests=tuple(i.sha256[:DIGEST_LENGTH] for i in steps.images.calibration.images),
    )
    return described_manifest(
        steps.model.spec,
        steps.model.target,
        version=bundle_version,
        created_at=created_at,
        variants=variants,
        opset=steps.checked.opset,
        onnxruntime=runtimes,
        fallback_reason=steps.search.fallback_reason,
        distillation=steps.distilled.promise if steps.distilled else None,
        provenance=provenance,
        files=folder.entries,
    )


_NAMED = 3


class BuildResult(BuildReport, frozen=True, kw_only=True):
    """The report of a build, as in report.json, and further facts for the person who built.

    Attributes:
        precision: what the bundle carries. Figures of INT8 are those of the most accurate INT8 model.
        fallback_reason: why the bundle holds the FP32 model; None when it holds the INT8 one.
        fp32_mb, int8_mb: size of the model as it was given, and in INT8; MB of 1e6 bytes.
        fp32_latency_ms, int8_latency_ms: medians of interleaved runs on this machine, one thread.
        distillation: FP32 compared with its teacher; None when model.toml names no teacher.
        found_images: number of images that were found for calibration; `calibration_images` of them were used.
        replaced: what was at `bundle` before.
        remembered_steps: number of steps that an earlier build had finished and that were not done again.
    """

    bundle: str
    version: int
    precision: Literal["int8", "fp32"]
    fallback_reason: str | None
    fp32_mb: float
    int8_mb: float
    fp32_latency_ms: float
    int8_latency_ms: float
    agreement: Agreement
    quality: tuple[Figure, ...]
    distillation: Distillation | None
    integer_mac_share: float
    float_nodes: int
    calibration_images: int
    found_images: int
    samples: tuple[Sample, ...]
    replaced: Replaced
    onnxruntime: tuple[str, str]
    is_for_here: bool
    input: InputTrial
    remembered_steps: int


def result_of(
    report: BuildReport, manifest: Manifest, steps: Steps, folder: BundleFolder, job_runner: JobRunner
) -> BuildResult:
    """Return the result of a build whose bundle is written."""
    search, images = steps.search, steps.images
    proof = search.int8.proof
    told = {name: getattr(report, name) for name in report.__struct_fields__}
    # Pictures are left out: report.html shows them.
    told["worst_images"] = tuple(msgspec.structs.replace(one, picture=b"") for one in report.worst_images)
    told["warnings"] = (*report.warnings, *_further_warnings(steps, folder, job_runner))
    return BuildResult(
        **told,
        bundle=str(folder.output),
        version=manifest.version,
        precision="int8" if search.chosen else "fp32",
        fallback_reason=search.fallback_reason,
        fp32_mb=steps.checked.proto.ByteSize() / 1e6,
        int8_mb=proof.model_mb,
        fp32_latency_ms=proof.fp32_latency_ms,
        int8_latency_ms=proof.latency_ms,
        agreement=proof.agreement,
        quality=proof.evaluation.quality,
        distillation=manifest.distillation,
        integer_mac_share=proof.integer_mac_share,
        float_nodes=len(manifest.provenance.float_nodes),
        calibration_images=len(images.calibration),
        found_images=images.found,
        samples=proof.samples,
        replaced=folder.replaces,
        onnxruntime=(manifest.onnxruntime.minimum, manifest.onnxruntime.maximum),
        is_for_here=manifest.machine == platform.machine(),
        input=steps.input,
        remembered_steps=job_runner.remembered,
    )


def _further_warnings(steps: Steps, folder: BundleFolder, job_runner: JobRunner) -> list[str]:
    warnings = []
    if job_runner.unkept:
        warnings.append(f"{job_runner.unkept}; an interrupted build will begin anew")
    skipped = (*steps.images.calibration.skipped, *steps.search.int8.proof.evaluation.skipped)
    if unreadable := sorted({str(one.path) for one in skipped}):
        more = f" and {len(unreadable) - _NAMED} more" if len(unreadable) > _NAMED else ""
        named = f"{', '.join(unreadable[:_NAMED])}{more}"
        warnings.append(f"{len(unreadable)} images cannot be read and were skipped: {named}")
    if steps.search.int8.recipe.reduce_range and not steps.model.target.reduce_range:
        warnings.append(
            "this machine's CPU has no VNNI and would saturate with 8-bit weights, so they have 7; build on a machine "
            "with VNNI or on the device for the last bit of accuracy"
        )
    if folder.replaces == "signed":
        warnings.append(
            f"the signature of the bundle that was replaced is gone; sign it again: edge-sdk sign {folder.output}"
        )
    return warnings
