"""build: check -> distill-check -> quantize -> convert -> prove -> bundle.

Owns the order of the steps and the choice of images. Each step's own rules live in its own file.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import onnx

from edge_sdk.bundle import Bundle
from edge_sdk.errors import UsageError
from edge_sdk.manifest import Agreement, BoardEstimate, Distillation, Manifest, Variant
from edge_sdk.model_spec import ModelSpec, load_model_spec
from edge_sdk.target import Target, load_target
from edge_sdk_tools.board import board_counter, check_latency, estimate_once
from edge_sdk_tools.bundle_folder import BundleFolder, Replaced, bundle_folder
from edge_sdk_tools.candidates import Workshop
from edge_sdk_tools.chain import measure_chain
from edge_sdk_tools.check import check_model
from edge_sdk_tools.device_form import fit_to_core
from edge_sdk_tools.distill_check import check_distillation
from edge_sdk_tools.evaluate import Figure, OnProgress, from_checked
from edge_sdk_tools.host_cpu import host_saturates
from edge_sdk_tools.image_split import split_images
from edge_sdk_tools.ledger import VariantRow, to_json
from edge_sdk_tools.pixel_input import InputTrial, choose_input
from edge_sdk_tools.promise import Steps, promise, runtime_range
from edge_sdk_tools.prove import Sample
from edge_sdk_tools.quantize import first_recipe, local_noise, refuse_quantized, simplify, watch_once
from edge_sdk_tools.record import record_of
from edge_sdk_tools.report import HTML_FILE, JSON_FILE, render_html
from edge_sdk_tools.runtime_replay import replay_in, replay_variants
from edge_sdk_tools.search import (
    RecipeSearch,
    Setting,
    Tried,
    check_size,
    choose_fp32,
    choose_int8,
    forms_of,
    refuse_without_int8,
)
from edge_sdk_tools.variants import (
    Made,
    Request,
    Workbench,
    add_variants,
    plan_variants,
    row_of,
)


class BuildReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a build came to.

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


def build(
    model_toml: Path,
    target_name: str,
    output: Path | None = None,
    *,
    calibration: Sequence[Path] = (),
    evaluation: Sequence[Path] = (),
    bundle_version: int | None = None,
    prove_runtimes: Sequence[str] = (),
    require_int8: bool = False,
    workshop: Workshop | None = None,
    variants: Request = Request(),  # noqa: B008 - frozen
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
        require_int8: fail where no INT8 model holds, instead of carrying FP32.
        workshop: makes and measures the models, and remembers what is finished; opened by the caller. By default
            everything is done in this process, and nothing remembered.
        variants: further models for the same bundle.
        on_progress: for progress bars.

    Raises:
        EdgeError: of the family that says who can mend it; what was at `output` is still there.
    """
    if model_toml.suffix != ".toml":
        raise UsageError(f"{model_toml}: expected a model.toml that describes the model, see README.md")
    spec = load_model_spec(model_toml)
    target = load_target(target_name)
    runtimes = runtime_range(target, prove_runtimes)
    with bundle_folder(output or Path(f"{spec.name}.edge")) as folder, contextlib.ExitStack() as own:
        helped = workshop or own.enter_context(Workshop())
        plan = plan_variants(spec, target, variants, folder.work, on_progress)
        steps = _take_steps(spec, target, calibration, evaluation, require_int8, helped, folder.work, on_progress)
        check_size(spec.gates, steps.choice.proof.model_mb)
        check_latency(steps.board, target, steps.latency_budget_ms)
        made = Workbench(steps, helped, folder.work, on_progress, requires_int8=require_int8).make(plan)
        carried = _add_files(folder, steps, made)
        manifest = promise(steps, carried, folder.entries, runtimes, bundle_version or int(time.time()))
        # The very files that ship, as a device opens them: what this fails, no device would take.
        replay_variants(Bundle.open(folder.preview(manifest)))
        for number, wanted in enumerate(prove_runtimes, start=1):
            replay_in(wanted, folder.preview(manifest))
            on_progress("replay golden", number, len(prove_runtimes))
        folder.finish(manifest)
    return _report(manifest, steps, folder, helped, made)


def _take_steps(
    spec: ModelSpec,
    target: Target,
    calibration: Sequence[Path],
    evaluation: Sequence[Path],
    wants_int8: bool,
    workshop: Workshop,
    work: Path,
    on_progress: OnProgress,
) -> Steps:
    on_progress("check", 0, 1)
    checked = check_model(spec, target)
    refuse_quantized(checked.proto)
    on_progress("check", 1, 1)
    images = split_images(spec, checked.labels, calibration, evaluation)
    distilled = check_distillation(spec, checked, images.evaluation, workshop, on_progress)
    fp32 = from_checked("the FP32 model", spec, checked)
    recipe = first_recipe(target, reduce_range=target.reduce_range or host_saturates())
    simplified = simplify(checked.proto, work)
    activations = watch_once(
        workshop,
        simplified,
        images.calibration,
        spec.input,
        symmetric=recipe.is_symmetric,
        on_image=lambda done: on_progress("calibrate", done, len(images.calibration)),
    )
    counter = board_counter(target)
    setting = Setting(
        spec,
        target,
        fp32,
        checked.proto.SerializeToString(),
        simplified,
        images.evaluation,
        threads=workshop.threads_per_job,
        elsewhere=workshop.is_elsewhere,
        board=lambda model: estimate_once(workshop, model, target, counter, on_progress),
        on_progress=on_progress,
    )
    search = RecipeSearch(setting, activations, images, workshop, work).run(recipe)
    if wants_int8:
        refuse_without_int8(search)
    choice = choose_int8(search.chosen) if search.chosen else choose_fp32(search, setting, workshop, work)
    if search.chosen:
        choice = fit_to_core(choice, spec, target, search.chosen.quantized.macs, work)
    choice, taken = choose_input(choice, spec.input, target, work)
    forms = forms_of(spec, fp32, distilled, simplified, search, choice)
    with measure_chain(forms, choice.proof.images, spec, target, counter) as finish:
        board = estimate_once(workshop, choice.converted.model, target, counter, on_progress)
        noise = local_noise(simplified, activations, onnx.load(forms.files["int8"]))
        chain = finish()
    return Steps(spec, target, images, checked, distilled, simplified, search, choice, taken, chain, noise, board)


def _add_files(folder: BundleFolder, steps: Steps, made: Sequence[Made]) -> tuple[Variant, ...]:
    variants = add_variants(folder, made)
    folder.add("labels.txt", "".join(f"{label}\n" for label in steps.checked.labels).encode())
    ledger = msgspec.structs.replace(record_of(steps), variants=tuple(row_of(one) for one in made))
    folder.add(HTML_FILE, render_html(ledger).encode())
    folder.add(JSON_FILE, to_json(ledger))
    return variants


def _report(
    manifest: Manifest, steps: Steps, folder: BundleFolder, workshop: Workshop, made: Sequence[Made]
) -> BuildReport:
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
        trials=tuple(trial.row for trial in search.trials),
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
