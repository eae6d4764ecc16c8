"""What a build came to, for people and programs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Literal

import msgspec

from edge_sdk.bundle.manifest import Agreement, BoardEstimate, Distillation, Manifest
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk_tools.build.variants import Made, row_of
from edge_sdk_tools.bundle_folder import BundleFolder, Replaced
from edge_sdk_tools.evaluate.statistics import Figure
from edge_sdk_tools.gates import Steps
from edge_sdk_tools.jobs.runner import Workshop
from edge_sdk_tools.prove.golden import Sample
from edge_sdk_tools.report.schema import VariantRow
from edge_sdk_tools.search.search import Tried
from edge_sdk_tools.search.uint8_input import InputTrial


class BuildReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a build.

    Attributes:
        bundle: where it is.
        name, version, target: as in the manifest.
        precision: of the model that the bundle carries. Figures of INT8 are those of the model that lost least.
        fallback_reason: why the bundle carries FP32; None when it carries INT8.
        trials: recipes that were tried, in order.
        fp32_mb, model_mb, int8_mb: the model as it was given, as the bundle carries it, in INT8; MB of 1e6 bytes.
        fp32_latency_ms, int8_latency_ms: medians of interleaved runs on this machine, one thread.
        agreement: INT8 with FP32, on images that calibration never saw.
        quality: INT8 beside FP32 against the labels of the evaluation images; empty without labels.
        doubts: what a reader should know before believing these figures.
        distillation: FP32 with its teacher, on the same images; None when model.toml names none.
        integer_mac_share: of the convolutions outside the float tail, 0-1.
        float_nodes: how many nodes were left float on purpose.
        calibration_images: how many calibrated ...
        found_images: ... of so many that could have.
        samples: what both models say of a few images.
        replaced: what was at `bundle` before: `nothing`, `unsigned` or `signed`.
        unreadable_images: files that were skipped.
        onnxruntime: versions that may run it, lowest and highest.
        is_for_here: whether this machine could run it.
        background_unsaid: the first label is "background" and model.toml does not say so.
        reduced_for_host: the weights have 7 bits only because this machine's CPU would saturate with 8.
        latency_budget_ms: promised to the device.
        input: whether the model takes levels or normalised floats, and why.
        board: an estimate of one inference there; None where nothing counted it.
        remembered_steps: that an earlier build had finished, and that were not done again.
        variants: all models that were made, the one that runs in front; those with a problem are not in the bundle.
    """

    bundle: str
    name: str
    version: int
    target: str
    precision: Literal["int8", "fp32"]
    fallback_reason: str | None
    trials: tuple[Tried, ...]
    fp32_mb: float
    model_mb: float
    int8_mb: float
    fp32_latency_ms: float
    int8_latency_ms: float
    agreement: Agreement
    quality: tuple[Figure, ...]
    doubts: tuple[str, ...]
    distillation: Distillation | None
    integer_mac_share: float
    float_nodes: int
    calibration_images: int
    found_images: int
    samples: tuple[Sample, ...]
    replaced: Replaced
    unreadable_images: list[str]
    onnxruntime: tuple[str, str]
    is_for_here: bool
    background_unsaid: bool
    reduced_for_host: bool
    latency_budget_ms: float
    input: InputTrial
    board: BoardEstimate | None
    remembered_steps: int
    variants: tuple[VariantRow, ...]


def report_of(
    manifest: Manifest, steps: Steps, folder: BundleFolder, workshop: Workshop, made: Sequence[Made]
) -> BuildReport:
    """The outcome of a build.

    Args:
        manifest: of the bundle.
        steps: what they gave.
        folder: where the bundle is.
        workshop: knows what was remembered.
        made: all models, the one that runs in front.
    """
    choice, search, images = steps.choice, steps.search, steps.images
    int8 = search.chosen or search.best
    proof = int8.proof
    unreadable = (*images.calibration.unreadable, *(skipped.path for skipped in proof.evaluation.skipped))
    return BuildReport(
        bundle=str(folder.output),
        name=manifest.name,
        version=manifest.version,
        target=manifest.target,
        fp32_mb=steps.checked.proto.ByteSize() / 1e6,
        precision=choice.precision,
        fallback_reason=choice.fallback_reason,
        trials=tuple(msgspec.structs.replace(t.row, carried=t is search.chosen) for t in search.trials),
        model_mb=choice.proof.model_mb,
        int8_mb=proof.model_mb,
        fp32_latency_ms=proof.fp32_latency_ms,
        int8_latency_ms=proof.latency_ms,
        agreement=proof.agreement,
        quality=proof.evaluation.quality,
        doubts=(*proof.evaluation.warnings, *search.doubts, *steps.chain.doubts, *_unkept(workshop)),
        distillation=steps.distillation,
        integer_mac_share=proof.integer_mac_share,
        float_nodes=len(manifest.provenance.float_nodes),
        calibration_images=len(images.calibration),
        found_images=images.found,
        samples=proof.samples,
        replaced=folder.replaces,
        unreadable_images=sorted({str(p) for p in unreadable}),
        onnxruntime=(manifest.onnxruntime.minimum, manifest.onnxruntime.maximum),
        is_for_here=manifest.machine == platform.machine(),
        background_unsaid=_background_unsaid(steps.spec, steps.checked.labels),
        reduced_for_host=int8.quantized.recipe.reduce_range and not steps.target.reduce_range,
        latency_budget_ms=manifest.latency_budget_ms,
        input=steps.input,
        board=steps.board,
        remembered_steps=workshop.remembered,
        variants=tuple(row_of(one) for one in made),
    )


def _unkept(workshop: Workshop) -> tuple[str, ...]:
    return (f"{workshop.unkept}; an interrupted build will begin anew",) if workshop.unkept else ()


def _background_unsaid(spec: ModelSpec, labels: Sequence[str]) -> bool:
    is_classifier = spec.task == "classification"
    return is_classifier and labels[0].casefold() == "background" and not spec.classification.background_class
