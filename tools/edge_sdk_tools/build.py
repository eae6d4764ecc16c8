"""build: check -> distill-check -> quantize -> convert -> prove -> bundle.

Owns the order of the steps and the choice of images. Each step's own rules live in its own file.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edge_sdk.bundle import Bundle
from edge_sdk.errors import UsageError
from edge_sdk.manifest import Agreement, Distillation, Golden, Manifest
from edge_sdk.model_spec import ModelSpec, load_model_spec
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session
from edge_sdk.target import Target, load_target
from edge_sdk_tools.bundle_folder import BundleFolder, Replaced, bundle_folder
from edge_sdk_tools.check import check_model
from edge_sdk_tools.convert import convert
from edge_sdk_tools.distill_check import check_distillation
from edge_sdk_tools.evaluate import Figure, OnProgress
from edge_sdk_tools.host_cpu import host_saturates
from edge_sdk_tools.image_split import split_images
from edge_sdk_tools.promise import MODEL_FILE, Steps, promise, runtime_range
from edge_sdk_tools.prove import Sample, check_gates, make_golden, prove
from edge_sdk_tools.quantize import first_recipe, quantize, simplify, watch_activations
from edge_sdk_tools.runtime_replay import replay_in


class BuildReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a build came to.

    Attributes:
        bundle: where it is.
        name, version, target: as in the manifest.
        fp32_mb, int8_mb: model files, MB of 1e6 bytes.
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
    """

    bundle: str
    name: str
    version: int
    target: str
    fp32_mb: float
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


def build(
    model_toml: Path,
    target_name: str,
    output: Path | None = None,
    *,
    calibration: Sequence[Path] = (),
    evaluation: Sequence[Path] = (),
    bundle_version: int | None = None,
    prove_runtimes: Sequence[str] = (),
    on_progress: OnProgress = lambda _step, _done, _total: None,
) -> BuildReport:
    """Build a bundle.

    Args:
        model_toml: describes the model.
        target_name: name or path of a target.
        output: the bundle; `NAME.edge` in the working folder by default. An older bundle there is replaced.
        calibration: folders of images; model.toml's by default.
        evaluation: folders of images; model.toml's by default, else every fourth calibration image is held out.
        bundle_version: grows from build to build; seconds since the epoch by default.
        prove_runtimes: further versions of ONNX Runtime to replay golden in; fetched with pip. The bundle then runs
            from the lowest of them to this machine's.
        on_progress: for progress bars.

    Raises:
        EdgeError: of the family that says who can mend it; what was at `output` is still there.
    """
    if model_toml.suffix != ".toml":
        raise UsageError(f"{model_toml}: expected a model.toml that describes the model, see README.md")
    spec = load_model_spec(model_toml)
    target = load_target(target_name)
    runtimes = runtime_range(target, prove_runtimes)
    with bundle_folder(output or Path(f"{spec.name}.edge")) as folder:
        steps = _take_steps(spec, target, calibration, evaluation, folder.work, on_progress)
        check_gates(spec.gates, steps.proof)
        golden = _add_files(folder, steps)
        manifest = promise(steps, golden, folder.entries, runtimes, bundle_version or int(time.time()))
        # The very file that ships, as a device opens it: what this fails, no device would take.
        whole = Bundle.open(folder.preview(manifest))
        Session.open(whole).replay_golden(whole, Prepare(spec.input))
        for number, wanted in enumerate(prove_runtimes, start=1):
            replay_in(wanted, folder.preview(manifest))
            on_progress("replay golden", number, len(prove_runtimes))
        folder.finish(manifest)
    return _report(manifest, steps, folder)


def _take_steps(
    spec: ModelSpec,
    target: Target,
    calibration: Sequence[Path],
    evaluation: Sequence[Path],
    work: Path,
    on_progress: OnProgress,
) -> Steps:
    on_progress("check", 0, 1)
    checked = check_model(spec, target)
    on_progress("check", 1, 1)
    images = split_images(spec, checked.labels, calibration, evaluation)
    distillation = check_distillation(spec, checked, images.evaluation, on_progress)
    recipe = first_recipe(target, reduce_range=target.reduce_range or host_saturates())
    simplified = simplify(checked.proto, work)
    activations = watch_activations(
        simplified,
        images.calibration,
        spec.input,
        symmetric=recipe.is_symmetric,
        on_image=lambda done: on_progress("calibrate", done, len(images.calibration)),
    )
    on_progress("quantize", 0, 1)
    quantized = quantize(simplified, activations, recipe, work / "int8.onnx")
    on_progress("quantize", 1, 1)
    on_progress("convert", 0, 1)
    converted = convert(quantized.path, target, work)
    on_progress("convert", 1, 1)
    proof = prove(spec, checked, quantized, converted, images.evaluation, on_progress)
    return Steps(spec, target, images, checked, quantized, distillation, converted, proof)


def _add_files(folder: BundleFolder, steps: Steps) -> Golden:
    data, golden = make_golden(steps.spec, steps.quantized.path, steps.proof.images)
    folder.add(MODEL_FILE, steps.converted.model.read_bytes())
    folder.add("required_operators_and_types.config", steps.converted.operators_config.read_bytes())
    folder.add("labels.txt", "".join(f"{label}\n" for label in steps.checked.labels).encode())
    folder.add(golden.file, data)
    return golden


def _report(manifest: Manifest, steps: Steps, folder: BundleFolder) -> BuildReport:
    proof, images = steps.proof, steps.images
    unreadable = (*images.calibration.unreadable, *(skipped.path for skipped in proof.evaluation.skipped))
    return BuildReport(
        bundle=str(folder.output),
        name=manifest.name,
        version=manifest.version,
        target=manifest.target,
        fp32_mb=steps.checked.proto.ByteSize() / 1e6,
        int8_mb=proof.int8_mb,
        fp32_latency_ms=proof.fp32_latency_ms,
        int8_latency_ms=proof.int8_latency_ms,
        agreement=proof.agreement,
        quality=proof.evaluation.quality,
        doubts=proof.evaluation.warnings,
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
        reduced_for_host=steps.quantized.recipe.reduce_range and not steps.target.reduce_range,
        latency_budget_ms=manifest.latency_budget_ms,
    )


def _background_unsaid(spec: ModelSpec, labels: Sequence[str]) -> bool:
    is_classifier = spec.task == "classification"
    return is_classifier and labels[0].casefold() == "background" and not spec.classification.background_class
