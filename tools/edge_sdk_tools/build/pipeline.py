"""build: check -> distill-check -> quantize -> convert -> prove -> bundle.

Owns the order of the steps and the choice of images. Each step's own rules live in its own file.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import onnx

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Variant
from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.bundle.target import Target, load_target
from edge_sdk.core.errors import UsageError
from edge_sdk_tools.build.result import BuildReport, report_of
from edge_sdk_tools.build.target_form import fit_to_core
from edge_sdk_tools.build.variants import Made, Request, plan_variants, row_of
from edge_sdk_tools.build.workbench import Workbench, add_variants
from edge_sdk_tools.bundle_folder import BundleFolder, bundle_folder
from edge_sdk_tools.check.gate import check_model
from edge_sdk_tools.check.runtimes import as_admitted, runtime_range
from edge_sdk_tools.datasets.split import split_images
from edge_sdk_tools.distillation.step import check_distillation
from edge_sdk_tools.evaluate.evaluation import OnProgress
from edge_sdk_tools.evaluate.model import from_checked
from edge_sdk_tools.gates import Steps, promise
from edge_sdk_tools.graph.profile import host_saturates
from edge_sdk_tools.jobs.runner import Workshop
from edge_sdk_tools.prove.board import board_counter, check_latency, estimate_once
from edge_sdk_tools.prove.parity import measure_chain
from edge_sdk_tools.prove.runtime_versions import replay_in, replay_variants
from edge_sdk_tools.quantize.calibration import watch_once
from edge_sdk_tools.quantize.local_noise import local_noise
from edge_sdk_tools.quantize.recipe import first_recipe
from edge_sdk_tools.quantize.simplified import refuse_quantized, simplify
from edge_sdk_tools.quantize.target_form import signs_activations
from edge_sdk_tools.report.collect import record_of
from edge_sdk_tools.report.page import HTML_FILE, JSON_FILE, render_html
from edge_sdk_tools.report.schema import to_json
from edge_sdk_tools.search.choice import check_size, choose_fp32, choose_int8, forms_of, refuse_without_int8
from edge_sdk_tools.search.context import Setting
from edge_sdk_tools.search.search import RecipeSearch
from edge_sdk_tools.search.uint8_input import choose_input


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
        workshop: makes and measures the models, and remembers what is finished; opened by the caller, and closed after
            an error. By default everything is done in this process, and nothing remembered.
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
    target = as_admitted(target, prove_runtimes)
    with bundle_folder(output or Path(f"{spec.name}.edge")) as folder, contextlib.ExitStack() as own:
        helped = workshop or own.enter_context(Workshop())
        # Before the folder goes nobody may write to it any more.
        own.push(lambda kind, _error, _trace: helped.abandon() if kind else None)
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
    return report_of(manifest, steps, folder, helped, made)


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
    refuse_quantized(checked.proto, spec.model)
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
    counter = board_counter(target, checked.proto)
    setting = Setting(
        spec,
        target,
        fp32,
        checked.proto.SerializeToString(),
        simplified,
        images.evaluation,
        threads=workshop.threads_per_job,
        elsewhere=workshop.is_elsewhere,
        folder=work,
        board=lambda model: estimate_once(workshop, model, target, counter, on_progress),
        on_progress=on_progress,
    )
    search = RecipeSearch(setting, activations, images, workshop, work).run(recipe)
    if wants_int8:
        refuse_without_int8(search)
    choice = choose_int8(search.chosen) if search.chosen else choose_fp32(search, setting, workshop, work)
    macs = search.chosen.quantized.macs if search.chosen else {}
    if signs_activations(target.cpu):
        choice = fit_to_core(choice, spec, target, fp32.session, macs, work)
        choice, taken = choose_input(choice, spec.input, target, work)
    else:  # the core's form of the model that takes levels, where it does
        choice, taken = choose_input(choice, spec.input, target, work)
        choice = fit_to_core(choice, spec, target, fp32.session, macs, work)
    forms = forms_of(fp32, distilled, simplified, search, choice)
    with measure_chain(forms, choice.proof.images, spec, target, counter) as finish:
        board = estimate_once(workshop, choice.converted.model, target, counter, on_progress)
        noise = local_noise(simplified, activations, onnx.load(forms.files["int8"]))
        chain = finish()
    return Steps(
        spec, target, images, checked, setting.fp32, distilled, simplified, search, choice, taken, chain, noise, board
    )


def _add_files(folder: BundleFolder, steps: Steps, made: Sequence[Made]) -> tuple[Variant, ...]:
    variants = add_variants(folder, made)
    folder.add("labels.txt", "".join(f"{label}\n" for label in steps.checked.labels).encode())
    ledger = msgspec.structs.replace(record_of(steps), variants=tuple(row_of(one) for one in made))
    folder.add(HTML_FILE, render_html(ledger).encode())
    folder.add(JSON_FILE, to_json(ledger))
    return variants
