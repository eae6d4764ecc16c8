"""The further models of a bundle: which were asked for, whether they are possible, and the making of them.

A size is possible where the check passes the model with another input size: it infers all shapes and runs the
model in its limited process. A variant that fails a gate is left out of the bundle, with a warning.
"""

from __future__ import annotations

import platform
import re
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import onnx

from edge_sdk.bundle.manifest import PRECISIONS, Precision
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import AccuracyGateError, LatencyGateError, ModelError, SizeGateError, UsageError
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk.tasks.spec import TRAITS
from edge_sdk_tools.arm_cost.estimate import check_latency
from edge_sdk_tools.check.gate import CheckedModel, check_model, examine
from edge_sdk_tools.datasets.images import ImageSet
from edge_sdk_tools.evaluate.evaluation import summarise
from edge_sdk_tools.evaluate.model import Subject
from edge_sdk_tools.evaluate.participants import pair_up
from edge_sdk_tools.evaluate.predictions import observe
from edge_sdk_tools.graph.index import GraphIndex, copy_of, graph_values
from edge_sdk_tools.graph.profile import interleaved_latency_ms, timing_settings
from edge_sdk_tools.jobs.runner import OnProgress
from edge_sdk_tools.prove.parity import agreement_of
from edge_sdk_tools.quantize.calibration import Activations, watch_once
from edge_sdk_tools.quantize.convert import MAKERS, Ranges
from edge_sdk_tools.quantize.quantize import Recipe
from edge_sdk_tools.search.gates import check_size, gate_failure_of
from edge_sdk_tools.search.shipped_form import fit_to_core
from edge_sdk_tools.search.variant import ModelVariant, VariantSpec, make_variants

_SMALLEST, _LARGEST = 8, 8192  # sides that model.toml takes


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The further variants that a bundle is to have: other input sizes in pixels, and precisions at its own size."""

    sizes: tuple[tuple[int, int], ...] = ()
    precisions: frozenset[Precision] = frozenset()


def parse_sizes(text: str, flag: str = "--sizes") -> tuple[tuple[int, int], ...]:
    """Read sizes such as `640x384,416`, which a flag was given: width x height, or one number for a square; each once.

    A UsageError says that something else is written there.
    """
    return tuple(dict.fromkeys(_size(part.strip(), f"{flag} {text}") for part in text.split(",")))


def size_text(size_wh: tuple[int, int]) -> str:
    """Return `640x384`."""
    return f"{size_wh[0]}x{size_wh[1]}"


def _size(part: str, where: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", part, re.ASCII)
    if found is None:
        raise UsageError(f"{where}: {part!r} is no size, expected such as 416 or 640x384")
    width, height = int(found[1]), int(found[2] or found[1])
    if not (_SMALLEST <= width <= _LARGEST and _SMALLEST <= height <= _LARGEST):
        raise UsageError(f"{where}: {part} is outside of {_SMALLEST} to {_LARGEST} pixels a side")
    return width, height


_SPATIAL = ("AveragePool", "Conv", "MaxPool")
Resized: TypeAlias = tuple[ModelSpec, CheckedModel]  # the model at another size


def resize(spec: ModelSpec, checked: CheckedModel, target: Target, size_wh: tuple[int, int], path: Path) -> Resized:
    """Give a checked model another input size, in pixels, in a new file at `path`.

    A UsageError says that cells of its outputs would not lie evenly on the input, a ModelError that it is made for one
    size only, or that its outputs at this size are not what the decoder reads.
    """
    _refuse_uneven(spec, checked, size_wh)
    onnx.save(_set_free(checked.proto, spec), path)
    sized = msgspec.structs.replace(
        spec, model=str(path), input=msgspec.structs.replace(spec.input, size_wh=size_wh), teacher=None
    )
    try:
        return sized, check_model(sized, target)
    except ModelError as cause:
        raise ModelError(_refusal(spec, sized, target)) from cause


def _stride_of(checked: CheckedModel, size_wh: tuple[int, int]) -> int:
    """Return the largest factor by which layers divide the input's sides; 1 where none divides both evenly."""
    values = graph_values(checked.proto.graph)
    names = [name for node in checked.proto.graph.node if node.op_type in _SPATIAL for name in node.output]
    shapes = [values[name].shape or () for name in names if name in values]
    strides, (width, height) = [1], size_wh
    for shape in shapes:
        rows, columns = shape[2:] if len(shape) == 4 else (None, None)
        if isinstance(rows, int) and isinstance(columns, int) and min(rows, columns) > 1:
            is_even = width % columns == 0 and height % rows == 0 and width // columns == height // rows
            strides.append(width // columns if is_even else 1)
    return max(strides)


def _refuse_uneven(spec: ModelSpec, checked: CheckedModel, size_wh: tuple[int, int]) -> None:
    """Refuse a size at which a box or a class map would be off by parts of a cell, without any error."""
    stride = _stride_of(checked, spec.input.size_wh)
    if TRAITS[spec.task].is_of_whole_picture or not any(side % stride for side in size_wh):
        return
    width, height = (max(1, round(side / stride)) * stride for side in size_wh)
    what = f"the model's layers divide its input by {stride}, expected a multiple of that"
    raise UsageError(f"--sizes {size_text(size_wh)}: {what}: try {size_text((width, height))}")


def _set_free(proto: onnx.ModelProto, spec: ModelSpec) -> onnx.ModelProto:
    free = copy_of(proto)
    weights = GraphIndex(free.graph).constants
    [image] = [i for i in free.graph.input if i.name not in weights]
    rows = 2 if spec.input.layout == "NCHW" else 1
    for axis in (rows, rows + 1):
        image.type.tensor_type.shape.dim[axis].Clear()
    for output in free.graph.output:
        for side in output.type.tensor_type.shape.dim:
            side.Clear()
    del free.graph.value_info[:]
    return free


def _refusal(spec: ModelSpec, sized: ModelSpec, target: Target) -> str:
    size = size_text(sized.input.size_wh)
    errors = examine(sized, target).of("error")
    why = errors[0].what.removeprefix(f"{sized.model}: ") if errors else "it does not pass the check"
    return (
        f"{spec.model}: --sizes {size}: the model cannot have this input size: {why}; it is made for "
        f"{size_text(spec.input.size_wh)}: export it with dynamic height and width, or leave {size} out"
    )


def plan_sizes(spec: ModelSpec, target: Target, request: Request, work: Path, on_progress: OnProgress) -> list[Resized]:
    """Check the model at every requested size, and whether the requested precisions suit it.

    A ModelError says that it does not pass the gate or cannot be so, a UsageError that it would do no good.
    """
    sizes = [size for size in request.sizes if size != spec.input.size_wh]
    refusals = [refuse for name in MAKERS if name in request.precisions and (refuse := MAKERS[name].refuse)]
    if not (sizes or refusals):
        return []
    on_progress("try sizes", 0, len(sizes))
    checked = check_model(spec, target)
    folder = work / "plan"
    folder.mkdir()
    for refuse in refusals:
        refuse(checked.proto, folder)
    resized = []
    for done, size_wh in enumerate(sizes, start=1):
        resized.append(resize(spec, checked, target, size_wh, folder / f"{size_text(size_wh)}.onnx"))
        on_progress("try sizes", done, len(sizes))
    return resized


def make_others(
    request: Request,
    sizes: Sequence[Resized],
    spec: VariantSpec,
    first: ModelVariant,
    calibration: ImageSet,
    *,
    requires_int8: bool,
) -> tuple[ModelVariant, ...]:
    """Make all models of a bundle; the first one stays first.

    Every other model is measured as the first one was, and all are timed in turn; those that fall short have a problem.
    An AccuracyGateError says that INT8 falls short although `requires_int8`, or that FP32 finds nothing at a size.
    """
    if request == Request():
        return (first,)
    beside = [_resized(resized, spec, first.recipe, calibration) for resized in sizes]
    recipes = [
        Recipe(precision=name, reduce_range=facts.is_integer and spec.reduce_range)
        for name, facts in PRECISIONS.items()
        if name in request.precisions and name != first.precision
    ]
    beside += [(one, spec.timed_fp32) for one in make_variants(spec, recipes, lambda _: {})]
    others = [one for one, _ in beside]
    settings = timing_settings(spec.target)
    sessions = [
        Session((one.timed or one.converted.model).read_bytes(), settings, one.name) for one in (first, *others)
    ]
    fp32_ms, first_ms, *rest_ms = interleaved_latency_ms(
        [
            partial(session.run, np.zeros(session.input_shape, session.input_dtype))
            for session in (spec.timed_fp32, *sessions, *(fp32 for _, fp32 in beside))
        ],
        lambda done, total: spec.on_progress("measure all side by side", done, total),
    )
    judged = [_with_times(first, first_ms, fp32_ms, fp32_ms)]
    for one, taken_ms, same_size_ms in zip(others, rest_ms[: len(others)], rest_ms[len(others) :], strict=True):
        again = _with_times(one, taken_ms, same_size_ms, fp32_ms)
        again = msgspec.structs.replace(again, estimate=spec.estimate(again.converted.model))
        judged.append(_judged(one, again, spec, requires_int8=requires_int8))
    return tuple(judged)


def calibrate(model: VariantSpec, recipe: Recipe, images: ImageSet) -> Activations:
    """Run the simplified model on images that measure nothing; return a histogram of every activation."""
    return watch_once(
        model.job_runner,
        model.simplified,
        images,
        model.spec.input,
        symmetric=recipe.is_symmetric,
        on_image=lambda done: model.on_progress("calibrate", done, len(images)),
    )


def _resized(resized: Resized, first: VariantSpec, recipe: Recipe, images: ImageSet) -> tuple[ModelVariant, Session]:
    """Make the first model's recipe at another size, whose activations are others; with it FP32 to time it beside."""
    sized, checked = resized
    size = size_text(sized.input.size_wh)
    folder = Path(tempfile.mkdtemp(prefix=f"{size}-", dir=first.folder))

    def say(step: str, done: int, total: int) -> None:
        first.on_progress(f"{size}: {step}", done, total)

    runner, counter = first.job_runner, first.counter
    spec = VariantSpec(sized, checked, first.target, first.evaluation, runner, counter, folder, say)

    def ranges(recipe: Recipe) -> Ranges:
        return calibrate(spec, recipe, images).ranges(recipe.calibration) if recipe.precision == "int8" else {}

    try:
        [variant] = make_variants(spec, [msgspec.structs.replace(recipe, core_form="")], ranges)
    except AccuracyGateError as cause:
        raise AccuracyGateError(f"at {size}: {cause}; leave that size out") from cause
    name = f"{PRECISIONS[recipe.precision].spoken} at {size}"
    session = Session(variant.converted.model.read_bytes(), SessionSettings(), "the converted model")
    subject = Subject(name, sized, first.fp32.labels, session, variant.name)
    observed = observe(
        pair_up([subject, first.fp32]),
        first.evaluation,
        lambda done: say("compare with the first size", done, len(first.evaluation)),
    )
    evaluation = summarise(observed, "the evaluation images")
    made = msgspec.structs.replace(
        fit_to_core(variant, first.target, folder),
        is_resized=True,
        board=spec.board_times(variant.converted.model) if recipe.precision == "int8" else None,
        evaluation=evaluation,
        agreement=agreement_of(observed, evaluation),
    )
    return made, spec.timed_fp32


def _with_times(variant: ModelVariant, taken_ms: float, same_size_ms: float, first_size_ms: float) -> ModelVariant:
    proof = msgspec.structs.replace(variant.proof, latency_ms=taken_ms, fp32_latency_ms=same_size_ms)
    return msgspec.structs.replace(variant, proof=proof, reference_ms=first_size_ms)


def _judged(once: ModelVariant, again: ModelVariant, spec: VariantSpec, *, requires_int8: bool) -> ModelVariant:
    """Add what keeps a model from the bundle, or what to doubt; only what was slow both times is called slow."""
    gates, target, proof = spec.spec.gates, spec.target, again.proof
    try:
        check_size(gates, proof.model_mb)
        check_latency(again.estimate, target, spec.latency_budget_ms)
    except (SizeGateError, LatencyGateError) as cause:
        return msgspec.structs.replace(again, problem=str(cause))
    if again.precision == "fp32":
        return again
    largest_share = MAKERS[again.precision].largest_share
    if largest_share is not None:
        whole_mb = spec.simplified.path.stat().st_size / 1e6
        if proof.model_mb > largest_share * whole_mb:
            problem = f"the model has {proof.model_mb:.2f} MB, and {whole_mb:.2f} in float: it saves too little"
            return msgspec.structs.replace(again, problem=problem)
    spoken, elsewhere = PRECISIONS[again.precision].spoken, target.machine != platform.machine()
    gate_failure = gate_failure_of(once.proof, gates, spoken, board=once.board, elsewhere=elsewhere)
    if gate_failure is not None and gate_failure.kind == "slow":
        gate_failure = gate_failure_of(proof, gates, spoken, board=once.board, elsewhere=elsewhere)
    if gate_failure is None or (largest_share is not None and gate_failure.kind == "slow"):
        return again  # it saves space on the disk and on the way to the device, not time
    if gate_failure.noise:
        return msgspec.structs.replace(again, doubt=f"{gate_failure.line}; {gate_failure.noise}")
    if requires_int8 and again.precision == "int8":
        raise AccuracyGateError(f"{again.name}: {gate_failure.line}; leave that size out, or leave out --require-int8")
    return msgspec.structs.replace(again, problem=gate_failure.line)
