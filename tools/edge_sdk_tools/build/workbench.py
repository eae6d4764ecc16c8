"""The files of all models that a bundle carries: each model, its golden inputs, and the operators of all.

Workbench: makes the models that a plan names, and measures them as the first one was measured.

Owns which of them hold: what falls short of a gate is left out of the bundle, and said to be.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import onnx

from edge_sdk.bundle.manifest import Precision, Variant
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import AccuracyGateError, LatencyGateError, SizeGateError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from edge_sdk_tools.arm_cost.counter import Counter
from edge_sdk_tools.build.target_form import fit_to_core
from edge_sdk_tools.build.variants import (
    Made,
    Plan,
    Resized,
    convert_half,
    product_work,
    quantize_products,
    size_text,
    with_half_weights,
)
from edge_sdk_tools.bundle_folder import BundleFolder
from edge_sdk_tools.evaluate.evaluation import OnProgress, summarise
from edge_sdk_tools.evaluate.model import Subject, from_checked
from edge_sdk_tools.evaluate.participants import pair_up
from edge_sdk_tools.evaluate.predictions import observe
from edge_sdk_tools.gates import Steps
from edge_sdk_tools.graph.profile import host_saturates, interleaved_latency_ms
from edge_sdk_tools.jobs.runner import Workshop
from edge_sdk_tools.prove.board import board_counter, check_latency, estimate_once
from edge_sdk_tools.prove.golden import Proof, Reference, agreement_of, make_golden, measure, prove
from edge_sdk_tools.quantize.calibration import watch_once
from edge_sdk_tools.quantize.convert import (
    Converted,
    carried_onnx,
    convert,
    float_file,
    operators_config,
    travels_as_onnx,
)
from edge_sdk_tools.quantize.quantize import quantize
from edge_sdk_tools.quantize.simplified import simplify
from edge_sdk_tools.search.choice import Choice, check_size
from edge_sdk_tools.search.context import shortfall_of

OPERATORS_FILE = "required_operators_and_types.config"
_ORT_SUFFIX = ".ort"


def add_variants(folder: BundleFolder, made: Sequence[Made]) -> tuple[Variant, ...]:
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


def _add(folder: BundleFolder, one: Made, *, is_first: bool) -> Variant:
    prepare = Prepare(one.spec.input, one.tensor)
    file = "golden.npz" if is_first else _golden_file(one)
    reference = _reference(one) if one.precision.startswith("int8") else None
    data, golden = make_golden(prepare, one.onnx, one.proof.images, file, reference)
    variant = one.promised(golden)
    folder.add(variant.file, one.converted.model.read_bytes())
    folder.add(golden.file, data)
    return variant


def _reference(one: Made) -> Reference:
    """What FP32 of the same size says of a picture."""
    session, prepare = one.fp32.clone(), Prepare(one.spec.input)
    return lambda resized: session.run(prepare.normalise(resized))


def _golden_file(one: Made) -> str:
    return f"golden.{one.name}.npz"


_SPOKEN: dict[Precision, str] = {"int8": "INT8", "fp32": "FP32", "fp16": "FP16", "int8_dynamic": "dynamic INT8"}
_HALVES = 0.75  # of FP32's file at most, or storing halves is not worth a cast each


class Workbench:
    """Makes the further variants of one build.

    Args:
        steps: of the build; its first model is made.
        workshop: may remember a calibration of an earlier build.
        work: a folder for files.
        on_progress: for progress bars.
        requires_int8: whether a size of which INT8 does not hold fails the build, instead of being left out.
    """

    def __init__(
        self, steps: Steps, workshop: Workshop, work: Path, on_progress: OnProgress, *, requires_int8: bool = False
    ) -> None:
        self._steps, self._workshop, self._work, self._on_progress = steps, workshop, work, on_progress
        self._requires_int8 = requires_int8
        self._spec, self._target = steps.spec, steps.target

    def make(self, plan: Plan) -> tuple[Made, ...]:
        """The first model and all that the plan names, in its order; those that fall short have a problem.

        Raises:
            AccuracyGateError: INT8 does not hold at a size, and must; or FP32 finds nothing at that size.
            EdgeError: as quantizing, converting and proving do.
        """
        first = _first(self._steps)
        if plan.request.is_empty:
            return (first,)
        fp32 = self._steps.fp32
        others = [self._resized(resized, fp32) for resized in plan.resized]
        if plan.request.fp32 and first.precision != "fp32":
            others.append(self._float(fp32))
        if plan.request.fp16:
            others.append(self._half(fp32))
        if plan.request.dynamic:
            others.append(self._dynamic(fp32))
        return self._timed(first, others, fp32)

    def _resized(self, resized: Resized, fp32: Subject) -> Made:
        """The recipe of the first model, with ranges of its own: a smaller picture gives other activations."""
        size, recipe = resized.spec.input.size_wh, self._steps.choice.recipe
        folder = self._folder(f"{size[0]}x{size[1]}")
        same_size = from_checked("the FP32 model", resized.spec, resized.checked)
        simplified = simplify(resized.checked.proto, folder)
        if recipe is None:
            converted = float_file(simplified.path, self._target, folder)
            return self._made("fp32", resized.spec, same_size, fp32, simplified.path, converted, {})
        images = self._steps.images.calibration
        activations = watch_once(
            self._workshop,
            simplified,
            images,
            resized.spec.input,
            symmetric=recipe.is_symmetric,
            on_image=lambda done: self._on_progress(f"{folder.name}: calibrate", done, len(images)),
        )
        quantized = quantize(simplified, activations.ranges(recipe.calibration), recipe, folder / "int8.onnx")
        converted = convert(quantized.path, self._target, folder)
        return self._made("int8", resized.spec, same_size, fp32, quantized.path, converted, quantized.macs)

    def _float(self, fp32: Subject) -> Made:
        source = self._steps.simplified.path
        converted = float_file(source, self._target, self._folder("fp32"))
        return self._made("fp32", self._spec, fp32, fp32, source, converted, {})

    def _half(self, fp32: Subject) -> Made:
        folder = self._folder("fp16")
        path = folder / "fp16.onnx"
        onnx.save(with_half_weights(self._steps.simplified.proto), path)
        converted = carried_onnx(path, folder) if travels_as_onnx(self._target) else convert_half(path, folder)
        return self._made("fp16", self._spec, fp32, fp32, path, converted, {})

    def _dynamic(self, fp32: Subject) -> Made:
        simplified, folder = self._steps.simplified, self._folder("int8_dynamic")
        path = folder / "dynamic.onnx"
        quantize_products(simplified.path, path, reduce_range=self._target.reduce_range or host_saturates())
        macs = product_work(simplified.proto).macs
        return self._made("int8_dynamic", self._spec, fp32, fp32, path, convert(path, self._target, folder), macs)

    def _made(
        self,
        precision: Precision,
        spec: ModelSpec,
        same_size: Subject,
        fp32: Subject,
        source: Path,
        converted: Converted,
        macs: dict[str, int],
    ) -> Made:
        """Measure a model beside FP32 of its own size, which tells what its numbers lose, and of the first's size."""
        images = self._steps.images.evaluation

        def say(step: str, done: int, total: int) -> None:
            self._on_progress(f"{precision}: {step}", done, total)

        try:
            measured = measure(spec, same_size, macs, converted, images, say)
            proof = prove(measured, spec, same_size, converted, say)
        except AccuracyGateError as cause:
            raise AccuracyGateError(f"at {size_text(spec.input.size_wh)}: {cause}; leave that size out") from cause
        choice = Choice("int8", source, converted, proof, self._steps.choice.recipe)
        if precision == "int8":
            choice = fit_to_core(choice, spec, self._target, same_size.session, macs, converted.model.parent)
        evaluation, agreement = proof.evaluation, proof.agreement
        if same_size is not fp32:
            model = converted.model.read_bytes()
            session = Session(model, SessionSettings(), "the converted model")
            subject = Subject(
                f"{_SPOKEN[precision]} at {size_text(spec.input.size_wh)}",
                spec,
                fp32.labels,
                session,
                hashlib.sha256(model).hexdigest(),
            )
            observed = observe(
                pair_up([subject, fp32]), images, lambda done: say("compare with the first size", done, len(images))
            )
            evaluation = summarise(observed, "the evaluation images")
            agreement = agreement_of(observed, evaluation)
        return Made(
            precision=precision,
            spec=spec,
            is_resized=same_size is not fp32,
            onnx=source,
            converted=choice.converted,
            timed=converted.model,
            fp32=same_size.session,
            proof=choice.proof,
            evaluation=evaluation,
            agreement=agreement,
            latency_ms=proof.latency_ms,
            latency_ratio=proof.latency_ms / proof.fp32_latency_ms,
            estimate=estimate_once(self._workshop, choice.converted.model, self._target, self._counter(), say),
        )

    def _judged(self, made: Made, again: Proof) -> Made:
        """With what keeps it from the bundle, or what to doubt.

        Args:
            made: what to judge.
            again: its proof with times that were taken a second time: what is called slow must be so twice.
        """
        gates, spoken = self._spec.gates, _SPOKEN[made.precision]
        elsewhere = self._target.machine != platform.machine()
        try:
            check_size(gates, made.proof.model_mb)
            check_latency(made.estimate, self._target, self._steps.latency_budget_ms)
        except (SizeGateError, LatencyGateError) as cause:
            return msgspec.structs.replace(made, problem=str(cause))
        if made.precision == "fp32":
            return made
        if made.precision == "fp16":
            whole_mb = self._steps.simplified.path.stat().st_size / 1e6
            if made.proof.model_mb > _HALVES * whole_mb:
                problem = (
                    f"the model has {made.proof.model_mb:.2f} MB, and {whole_mb:.2f} in float: halves save nothing"
                )
                return msgspec.structs.replace(made, problem=problem)
        shortfall = shortfall_of(made.proof, gates, spoken, elsewhere=elsewhere)
        if shortfall is not None and shortfall.kind == "slow":
            shortfall = shortfall_of(again, gates, spoken, elsewhere=elsewhere)
        if shortfall is None or (made.precision == "fp16" and shortfall.kind == "slow"):
            return made  # halves are for the disk and the way to the device, not for speed
        if shortfall.may_be_noise:
            return msgspec.structs.replace(made, doubt=f"{shortfall.line}; that may be noise: give more images")
        if self._requires_int8 and made.precision == "int8":
            raise AccuracyGateError(f"{made.name}: {shortfall.line}; leave that size out, or leave out --require-int8")
        return msgspec.structs.replace(made, problem=shortfall.line)

    def _timed(self, first: Made, others: Sequence[Made], fp32: Subject) -> tuple[Made, ...]:
        """All models in turn, so that their ratios mean something; then each is judged."""
        made = [Session(o.timed.read_bytes(), SessionSettings(), o.name) for o in (first, *others)]
        sessions = [fp32.session, *made, *(one.fp32 for one in others)]
        fp32_ms, first_ms, *rest_ms = interleaved_latency_ms(
            [partial(session.run, np.zeros(session.input_shape, session.input_dtype)) for session in sessions],
            lambda done, total: self._on_progress("measure all side by side", done, total),
        )
        count = len(others)
        judged = [_with_time(first, first_ms, fp32_ms)]
        for one, taken_ms, float_ms in zip(others, rest_ms[:count], rest_ms[count:], strict=True):
            again = msgspec.structs.replace(one.proof, latency_ms=taken_ms, fp32_latency_ms=float_ms)
            judged.append(self._judged(_with_time(one, taken_ms, fp32_ms), again))
        return tuple(judged)

    def _counter(self) -> Counter | None:
        return board_counter(self._target, self._steps.checked.proto)

    def _folder(self, name: str) -> Path:
        folder = self._work / f"variant_{name}"
        folder.mkdir()
        return folder


def _with_time(made: Made, taken_ms: float, fp32_ms: float) -> Made:
    return msgspec.structs.replace(made, latency_ms=taken_ms, latency_ratio=taken_ms / fp32_ms)


def _first(steps: Steps) -> Made:
    choice = steps.choice
    proof = choice.proof
    return Made(
        precision=choice.precision,
        spec=steps.spec,
        onnx=choice.onnx,
        converted=choice.converted,
        tensor=choice.tensor,
        timed=choice.timed or choice.converted.model,
        fp32=steps.fp32.session,
        proof=proof,
        evaluation=proof.evaluation,
        agreement=proof.agreement,
        latency_ms=proof.latency_ms,
        latency_ratio=proof.latency_ms / proof.fp32_latency_ms,
        estimate=steps.board,
    )
