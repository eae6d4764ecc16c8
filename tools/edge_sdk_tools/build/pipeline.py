"""build: from a model.toml to a bundle.

Twelve steps, each of which requires what those before it ensured; one that takes long is done by the job runner, which
remembers what an earlier build has finished:

    plan ─▶ check ─▶ split ─▶ load ─▶ judge ─▶ distill-check ─▶ calibrate ─▶ search ─▶ claim ─▶ fit ─▶ compare ─▶ write
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import onnx

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.bundle.target import Target, load_target
from edge_sdk_tools.arm_cost.estimate import board_counter, check_latency
from edge_sdk_tools.build.result import BuildResult, add_variants, manifest_of, result_of
from edge_sdk_tools.build.variants import Request, calibrate, make_others, plan_sizes
from edge_sdk_tools.bundle_folder import bundle_folder
from edge_sdk_tools.check.gate import as_admitted, check_model, runtime_range
from edge_sdk_tools.datasets.dataset import Dataset
from edge_sdk_tools.datasets.images import ImageSet
from edge_sdk_tools.datasets.reading import ImageSplit, split_images
from edge_sdk_tools.distillation.gate import Distilled, check_distillation
from edge_sdk_tools.evaluate.float_model import check_float_model
from edge_sdk_tools.jobs.runner import JobRunner, OnProgress, one_step, silent
from edge_sdk_tools.prove.golden import replay_in, replay_variants
from edge_sdk_tools.prove.parity import Chain, StepKind, measure_chain
from edge_sdk_tools.quantize.calibration import Activations
from edge_sdk_tools.quantize.forms import SIGNED
from edge_sdk_tools.quantize.quantize import Recipe, first_recipe
from edge_sdk_tools.report.collect import Steps, report_of
from edge_sdk_tools.report.page import HTML_FILE, JSON_FILE, render_html
from edge_sdk_tools.report.schema import to_json
from edge_sdk_tools.search.gates import check_size
from edge_sdk_tools.search.search import RecipeSearch, Search, claim, cross_validate
from edge_sdk_tools.search.sensitivity import LayerNoise, local_noise
from edge_sdk_tools.search.shipped_form import InputTrial, choose_input, fit_to_core
from edge_sdk_tools.search.variant import ModelVariant, VariantSpec, make_variants


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
    job_runner: JobRunner | None = None,
    variants: Request = Request(),  # noqa: B008 - frozen
    on_progress: OnProgress = silent,
    on_warning: Callable[[str], object] = lambda _line: None,
) -> BuildResult:
    """Build a bundle; what is not given is model.toml's. Some of the calibration images measure where no others do.

    `output` is `NAME.edge` in the working folder by default; an older bundle there is replaced. `bundle_version` grows
    from build to build: seconds since the epoch by default. Golden outputs are replayed in the further versions of ONNX
    Runtime of `prove_runtimes`, fetched with pip. `job_runner` makes and measures the models, and remembers what is
    finished; by default this process does everything, and remembers nothing. `variants` are further models. What
    is doubtful about the float model is told to `on_warning` before anything is quantized, and is in the result too.
    """
    spec = load_model_spec(model_toml)
    target = load_target(target_name)
    runtimes = runtime_range(target, prove_runtimes)
    target = as_admitted(target, prove_runtimes)
    with bundle_folder(output or Path(f"{spec.name}.edge")) as folder, contextlib.ExitStack() as own:
        helped = job_runner or own.enter_context(JobRunner())
        # No process may write to the folder when it is removed.
        own.push(lambda kind, _error, _trace: helped.abandon() if kind else None)
        sizes = plan_sizes(spec, target, variants, folder.work, on_progress)
        with one_step(on_progress, "check"):
            checked = check_model(spec, target, is_float=True)
        images = split_images(spec, checked.labels, calibration, evaluation)
        for warning in (*checked.warnings, *images.warnings):
            on_warning(warning)
        counter = board_counter(target, checked.proto)
        model = VariantSpec(spec, checked, target, images.choice, helped, counter, folder.work, on_progress)
        doubts = _judge(model, images)
        for doubt in doubts:
            on_warning(doubt)
        distilled = check_distillation(spec, checked, images.claim, helped, on_progress) if spec.teacher else None
        recipe = first_recipe(target, reduce_range=model.reduce_range)
        activations = calibrate(model, recipe, images.calibration)
        search = RecipeSearch(model, activations, images, (*checked.warnings, *doubts)).run(recipe)
        if images.has_claim:
            model = model.on(images.claim)
            search = claim(search, model, activations)
        else:
            search = cross_validate(search, spec.gates, elsewhere=target.machine != platform.machine())
        if require_int8:
            search.require_int8()
        # Where nothing held, the float model is measured like the others.
        chosen = search.chosen or make_variants(model, [Recipe(precision="fp32")], lambda _: {})[0]
        first, taken = _fit(chosen, target, folder.work)
        first, chain, noise = _compare(model, distilled, activations, search, first)
        made = make_others(variants, sizes, model, first, images.calibration, requires_int8=require_int8)
        steps = Steps(model, images, checked, distilled, search, made, taken, chain, noise)
        report = report_of(steps)
        carried = add_variants(folder, made)
        folder.add_labels(checked.labels)
        folder.add(HTML_FILE, render_html(report).encode())
        folder.add(JSON_FILE, to_json(report))
        version = bundle_version or int(time.time())
        manifest = manifest_of(steps, report.created_at, carried, folder, runtimes, version)
        # The very files of a whole bundle give their golden outputs, as a device would open them.
        bundle = folder.preview(manifest)
        replay_variants(Bundle.open(bundle))
        for number, wanted in enumerate(prove_runtimes, start=1):
            replay_in(wanted, bundle)
            on_progress("replay golden", number, len(prove_runtimes))
        folder.finish(manifest)
    return result_of(report, manifest, steps, folder, helped)


def _judge(model: VariantSpec, images: ImageSplit) -> tuple[str, ...]:
    """Requires a model that runs; ensures that it sees something, and returns what is doubtful about it."""
    seen = images.choice
    if seen.truths is None:  # nothing is calibrated yet: the images that will do it tell as much
        seen = Dataset(ImageSet((*seen.images.images, *images.calibration.images)), None, "images")
    with one_step(model.on_progress, "judge the float model"):
        return check_float_model(model.fp32, seen)


def _fit(variant: ModelVariant, target: Target, work: Path) -> tuple[ModelVariant, InputTrial]:
    """Requires a model that holds its gates; ensures one of the same outputs in the form that its target likes best."""
    if target.cpu == SIGNED:
        return choose_input(fit_to_core(variant, target, work), target, work)
    variant, taken = choose_input(variant, target, work)
    return fit_to_core(variant, target, work), taken  # the core's form of the model that takes levels, where it does


def _compare(
    model: VariantSpec, distilled: Distilled | None, activations: Activations, search: Search, first: ModelVariant
) -> tuple[ModelVariant, Chain, tuple[LayerNoise, ...]]:
    """Requires the file that ships; ensures that its size and time are within their gates, and compares all forms."""
    files: dict[StepKind, Path] = {"teacher": distilled.teacher_file} if distilled else {}
    simplified, shown = model.simplified, search.int8
    files |= {"fp32": simplified.given, "simplified": simplified.path, "int8": shown.onnx, "ort": first.converted.model}
    with measure_chain(
        model.fp32.session,
        files,
        first.proof.images,
        model.spec,
        model.target,
        model.counter,
        ships_int8=first.precision == "int8",
        taken=first.tensor,
    ) as finish:
        estimate = model.estimate(first.converted.model)
        noise = local_noise(simplified, activations, onnx.load(shown.onnx))
        chain = finish()
    check_size(model.spec.gates, first.proof.model_mb)
    check_latency(estimate, model.target, model.latency_budget_ms)
    return msgspec.structs.replace(first, estimate=estimate), chain, noise
