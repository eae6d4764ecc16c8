"""Forms of a model beside each other: the converted one beside FP32, and all of them with what each adds to the error.

`measure` gives a converted model's agreement with FP32 and its share of integer convolutions, on all images that
measure. `measure_chain` runs every form on the same few images.

Errors of independent steps add up as squares, so these are kept as energies until the end. Boxes in pixels are judged
apart from scores, which they would drown in one sum. What runs in other processes is begun first and looked at last:
the shipped file on the target's own core, emulated, and the memory that each form takes at its peak. What cannot be
measured is left out, and never fails a build.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from edge_sdk.bundle.bundle import NOISE_SHARE
from edge_sdk.bundle.manifest import Agreement, InputTensor
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import AccuracyGateError, DataError, EdgeError, one_line
from edge_sdk.core.frame import Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk.tasks.decoders import decoder_of
from edge_sdk.tasks.spec import TRAITS
from edge_sdk_tools.arm_cost.counter import CPUS, Counter, board_outputs
from edge_sdk_tools.datasets.dataset import Dataset
from edge_sdk_tools.datasets.images import ImageFile, ImageSet
from edge_sdk_tools.datasets.reading import ENOUGH_TO_SPLIT
from edge_sdk_tools.evaluate.evaluation import ENOUGH_IMAGES, Evaluation, describe, summarise
from edge_sdk_tools.evaluate.metrics import WorstImage
from edge_sdk_tools.evaluate.model import Subject
from edge_sdk_tools.evaluate.participants import pair_up
from edge_sdk_tools.evaluate.predictions import Observed, Products, observe
from edge_sdk_tools.evaluate.tasks import TASKS
from edge_sdk_tools.graph.profile import interleaved_latency_ms
from edge_sdk_tools.jobs.runner import OnProgress
from edge_sdk_tools.quantize.convert import Converted, integer_mac_share

_SAMPLES = 3
_WORST = 12


class Sample(msgspec.Struct, frozen=True):
    """The name of one image, and the results of FP32 and INT8 for it in words, for a person to compare."""

    image: str
    fp32: str
    int8: str


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a converted model. All but the times are the same on every machine.

    Attributes:
        evaluation: the converted model compared with the FP32 model, on images that calibration did not use.
        integer_mac_share: of the multiply-accumulates of convolutions outside the float tail, 0-1.
        samples: results of both models for a few images; `worst` are those on which they differ most.
        halves: evaluation and agreement on each half of the images, for a claim by cross-validation; empty where there
            are no labels, too few images, or enough for images of the claim's own.
        fp32_latency_ms, latency_ms: as `interleaved_latency_ms` has them here, one thread; 0 until `timed` sets them.
    """

    evaluation: Evaluation
    agreement: Agreement
    integer_mac_share: float
    model_mb: float
    samples: tuple[Sample, ...]
    worst: tuple[WorstImage, ...]
    images: ImageSet
    halves: tuple[tuple[Evaluation, Agreement], ...] = ()
    fp32_latency_ms: float = 0.0
    latency_ms: float = 0.0

    def on_half(self, which: int) -> Proof:
        """Return what was measured on one half of the images."""
        evaluation, agreement = self.halves[which]
        return msgspec.structs.replace(self, evaluation=evaluation, agreement=agreement, halves=())

    @property
    def latency_ratio(self) -> float:
        """The model's latency divided by that of FP32."""
        return self.latency_ms / self.fp32_latency_ms


def measure(
    spec: ModelSpec,
    fp32: Subject,
    macs: dict[str, int],
    converted: Converted,
    images: Dataset,
    on_progress: OnProgress,
    jobs: int | None = None,
) -> Proof:
    """Measure the converted model against the float one, except for the time.

    `macs` has the multiply-accumulates of each convolution that should run in integers; it is empty for a float model.
    An AccuracyGateError says that the float model finds nothing at all, a DataError that no image can be read.
    """
    model = converted.model.read_bytes()
    session = Session(model, SessionSettings(), "the converted model")
    name = "the INT8 model" if macs else "the converted model"
    subjects = [Subject(name, spec, fp32.labels, session, hashlib.sha256(model).hexdigest()), fp32]
    observed = observe(
        pair_up(subjects), images, lambda done: on_progress("compare with FP32", done, len(images)), jobs
    )
    evaluation = summarise(observed, "the evaluation images", on_progress=on_progress)
    readable = observed.dataset.images
    return Proof(
        evaluation=evaluation,
        agreement=agreement_of(observed, evaluation),
        integer_mac_share=integer_mac_share(converted.model, macs, converted.model.parent),
        model_mb=len(model) / 1e6,
        samples=tuple(
            Sample(one_line(file.path.name), *(describe(one.open()(file.read()).result) for one in reversed(subjects)))
            for file in readable.spread(_SAMPLES).images
        ),
        worst=TASKS[observed.task].worst(observed, _WORST),
        images=ImageSet(tuple(ImageFile(i.path, i.sha256, i.size_wh) for i in readable.images), readable.skipped),
        halves=_halves(observed, evaluation),
    )


def timed(
    proof: Proof,
    spec: ModelSpec,
    fp32: Session,
    converted: Converted,
    on_progress: OnProgress,
    limits: Sequence[float] = (),
    settings: SessionSettings = SessionSettings(),  # noqa: B008 - frozen
) -> Proof:
    """Return the proof with the latency of both models, measured on this machine until it is clear beside `limits`."""
    session = Session(converted.model.read_bytes(), settings, "the converted model")
    prepare = Prepare(spec.input)
    prepare.normalise(prepare.resize(proof.images.images[0].read()))
    latency_ms, fp32_ms = interleaved_latency_ms(
        [lambda: session.run(prepare.tensor), lambda: fp32.run(prepare.tensor)],
        lambda done, total: on_progress("measure latency", done, total),
        limits,
    )
    return msgspec.structs.replace(proof, fp32_latency_ms=fp32_ms, latency_ms=latency_ms)


def _halves(observed: Observed, whole: Evaluation) -> tuple[tuple[Evaluation, Agreement], ...]:
    if observed.dataset.truths is None or not ENOUGH_IMAGES <= len(observed.records) < ENOUGH_TO_SPLIT:
        return ()
    halves = [observed.picked(places) for places in observed.dataset.stratified_indices(2)]
    try:
        evaluations = [summarise(half, "half of the evaluation images") for half in halves]
    except (AccuracyGateError, DataError):
        return ()  # a half shows nothing
    named = {tuple(figure.name for figure in one.quality) for one in (whole, *evaluations)}
    if len(named) > 1:  # two pictures of each person: no half has a pair
        return ()
    return tuple((one, agreement_of(half, one)) for half, one in zip(halves, evaluations, strict=True))


def agreement_of(observed: Observed, evaluation: Evaluation) -> Agreement:
    """Return the agreement of the first of two models with the second, for the manifest."""
    value = evaluation.agreement[0].value
    task, images = TASKS[observed.task], len(observed.records)
    return Agreement(task.agreement_metric, value.value, value.low, value.high, images, task.compared(observed))


_BOX = 4


class Parts(msgspec.Struct, frozen=True):
    """How the raw outputs of one model are taken apart.

    Along `box_axis` each tensor has four numbers of a box first, then scores; None where nothing is mixed. Of a
    classifier the largest value of the first output is the answer.
    """

    box_axis: int | None
    is_classifier: bool

    def of(self, outputs: Sequence[Tensor]) -> list[NDArray[np.generic]]:
        """Return the parts, copied."""
        parts: list[NDArray[np.generic]] = []
        for output in outputs:
            axis = self.box_axis
            if axis is not None and output.ndim > 1 and output.shape[axis] > _BOX:
                parts += np.split(output.copy(), [_BOX], axis=axis)
            else:
                parts.append(output.copy())
        return parts


StepKind: TypeAlias = Literal["source", "teacher", "fp32", "simplified", "int8", "ort", "arm"]
"""In the order of a build: where the model was trained (PyTorch); its teacher; the model as given; after the graph was
simplified; quantized (QDQ ONNX); the file that ships, in ORT format or as ONNX; the same file on an emulated ARM."""


Inputs: TypeAlias = tuple[Tensor, Tensor]  # one prepared image: as all forms take it, and as the one that ships does
_TINY = 1e-30

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Amount: TypeAlias = Annotated[float, Meta(ge=0)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Signed: TypeAlias = Annotated[float, Meta(ge=-1, le=1)]


class OutputChange(msgspec.Struct, frozen=True, kw_only=True):
    """What one step changed in the raw outputs, on the same inputs.

    Attributes:
        against: the step whose outputs these were compared with.
        images: on how many real images.
        inputs: on how many inputs in all; noise and made pictures count too where an import was compared on them.
        identical: not one bit differs; None where only the largest difference is known.
        largest: the largest difference of two values, in units of the output.
        largest_share: the same, over the largest value of the output on that input.
        relative_error: root of the differences' energy over that of FP32's outputs, 0 or more: .1 is an SQNR of 20 dB.
            The mean over outputs, of the energies; boxes and scores in one tensor count as two outputs. None where
            outputs are whole numbers, such as classes, which have no energy.
        total_error: the same against FP32 itself: of all steps so far together.
        cosine: mean over images and outputs of the cosine between both, -1 to 1.
        top1_agreement: share of the images on which both have the same first class, 0-1; None for other tasks.
    """

    against: StepKind
    images: Count
    inputs: Count
    identical: bool | None = None
    largest: Amount
    largest_share: Amount | None = None
    relative_error: Amount | None = None
    total_error: Amount | None = None
    cosine: Signed | None = None
    top1_agreement: Share | None = None


class Form(msgspec.Struct, frozen=True, eq=False):
    """One form of a model that can run here: a prepared image in, its raw outputs out, which it may overwrite again."""

    kind: StepKind
    against: StepKind | None
    run: Callable[[Inputs], Sequence[Tensor]]


def compare_forms(forms: Sequence[Form], tensors: Sequence[Inputs], parts: Parts) -> dict[StepKind, OutputChange]:
    """Run every form on every tensor, one tensor after another, and compare it with the form before.

    The float model is the first form, and errors are measured by its energy. A form whose outputs have other shapes or
    are no finite numbers gets no result.
    """
    sums: dict[StepKind, list[_Sums | None]] = {form.kind: [] for form in forms if form.against}
    for tensor in tensors:
        said: dict[StepKind, list[NDArray[np.generic]]] = {}
        for form in forms:
            said[form.kind] = parts.of(form.run(tensor))
            if form.against:
                first = said[forms[0].kind]
                sums[form.kind].append(_sums(said[form.kind], said[form.against], first, parts))
    changes = {}
    for form in forms:
        found = [one for one in sums.get(form.kind, []) if one is not None]
        if form.against and found and len(found) == len(tensors):
            changes[form.kind] = _change(form.against, found)
    return changes


class _Sums(msgspec.Struct, frozen=True, eq=False):
    """What one form gave for one input, part by part: beside the form before, and beside the float model."""

    own: tuple[Products, ...]
    total: tuple[Products, ...]
    largest: float
    same_class: bool | None
    are_real: bool


def _sums(
    got: Sequence[NDArray[np.generic]],
    before: Sequence[NDArray[np.generic]],
    first: Sequence[NDArray[np.generic]],
    parts: Parts,
) -> _Sums | None:
    if not [a.shape for a in got] == [b.shape for b in before] == [c.shape for c in first]:
        return None
    are_real = all(np.issubdtype(values.dtype, np.floating) for values in (*got, *before, *first))
    got, before, first = ([values.astype(np.float64) for values in of] for of in (got, before, first))
    if not got or not all(np.isfinite(values).all() for values in (*got, *before, *first)):
        return None
    return _Sums(
        tuple(map(Products.of, got, before)),
        tuple(map(Products.of, got, first)),
        max(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(got, before, strict=True)),
        bool(got[0].argmax() == before[0].argmax()) if parts.is_classifier else None,
        are_real,
    )


def _change(against: StepKind, found: Sequence[_Sums]) -> OutputChange:
    own = np.sum([[part.error for part in one.own] for one in found], axis=0)
    total = np.sum([[part.error for part in one.total] for one in found], axis=0)
    signal = np.sum([[part.reference for part in one.total] for one in found], axis=0)
    same = [one.same_class for one in found if one.same_class is not None]
    largest = max(one.largest for one in found)
    are_real = all(one.are_real for one in found)
    return OutputChange(
        against=against,
        images=len(found),
        inputs=len(found),
        identical=largest == 0,
        largest=largest,
        relative_error=math.sqrt(float(np.mean(own / (signal + _TINY)))) if are_real else None,
        total_error=math.sqrt(float(np.mean(total / (signal + _TINY)))) if are_real else None,
        cosine=float(np.mean([part.cosine for one in found for part in one.own])) if are_real else None,
        top1_agreement=sum(same) / len(same) if same else None,
    )


_SECONDS = 10.0  # for images on the emulated core, after the start of its Python


def _why_not_emulated(target: Target, counter: Counter | None) -> str:
    """Say why the shipped file is not run on the target's core; empty where it is, or where that is no ARM."""
    if target.machine == "aarch64" and target.cpu not in CPUS:
        what = target.cpu or f"{target.name}, a family of cores"
        return f"not run: nothing here emulates {what}, but {' and '.join(CPUS)}"
    if target.machine == "aarch64" and counter is None:
        return "not run: `edge-sdk arm-cost setup` installs an emulator"
    return ""


_CHILD = Path(__file__).with_name("peak_memory_child.py")
_TIME_LIMIT_S = 60.0  # six models of a YOLOv8m's size take ten seconds on two slow cores
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}


@contextmanager
def peak_memory(models: Sequence[Path], shipped: Path) -> Iterator[Callable[[], list[float | None]]]:
    """Measure beside this process; the yielded function waits for the MB, of 1e6 bytes, that each model takes.

    None stands where that is not known. `models` are files that can be trusted. The `shipped` one is loaded as a device
    does, from bytes that it has read.
    """

    def finish() -> list[float | None]:
        try:
            said, _ = process.communicate(timeout=_TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            said = ""
        lines = [*said.splitlines(), *[""] * len(models)]
        return [int(line) / 1e6 if line.isdigit() else None for line in lines[: len(models)]]

    with subprocess.Popen(
        [sys.executable, str(_CHILD), *(str(model.absolute()) for model in (shipped, *models))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, **_ENVIRONMENT},
    ) as process:
        try:
            yield finish
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the fork that holds a model


CHAIN_IMAGES = 8
_BOARD_IMAGES = 4
_SAME_ON_BOARD = 1e-3  # as golden outputs are compared; float tails differ by less


class Chain(msgspec.Struct, frozen=True, eq=False):
    """What was measured, by step; a step that is missing was not.

    The peak is that of one process that loads the form and runs it once, above those without it. The emulated ARM has
    this `core`; `arm_left_out` says why there is no `arm` among the changes, where the target is one.
    """

    changes: dict[StepKind, OutputChange]
    peak_memory_mb: dict[StepKind, float]
    core: str | None
    arm_left_out: str

    @property
    def doubts(self) -> tuple[str, ...]:
        """What a reader should know before a device gets the file: one line each."""
        arm = self.changes.get("arm")
        int8 = self.changes.get("int8")
        quantization = (int8.relative_error or 0.0) if int8 else 0.0
        if arm is None or (arm.relative_error or 0.0) <= max(_SAME_ON_BOARD, NOISE_SHARE * quantization):
            return ()
        return (
            f"the file says something else on an emulated {self.core} than here: its outputs differ by "
            f"{arm.relative_error:.1%} of their size, by {arm.largest:.2g} at most; a device compares golden outputs "
            "before its first frame and may refuse this bundle: try `edge-sdk run` on one before you roll it out",
        )


@contextmanager
def measure_chain(
    fp32: Session,
    files: Mapping[StepKind, Path],
    images: ImageSet,
    spec: ModelSpec,
    target: Target,
    counter: Counter | None,
    *,
    ships_int8: bool,
    taken: InputTensor | None,
) -> Iterator[Callable[[], Chain]]:
    """Measure beside other work, except for latencies; the yielded function waits for the end.

    `files` are the model's forms, .onnx or .ort, of which `ort` ships: made of `int8` or else of `simplified`, and it
    takes `taken` where others take float32.
    """
    prepares = Prepare(spec.input), Prepare(spec.input, taken)
    pictures = [image.read() for image in images.spread(CHAIN_IMAGES).images]
    floats, own = ([one.normalise(one.resize(image)).copy() for image in pictures] for one in prepares)
    tensors = list(zip(floats, own, strict=True))
    few = tensors[:: max(1, len(tensors) // _BOARD_IMAGES)][:_BOARD_IMAGES]
    parts = Parts(decoder_of(spec).box_axis, TRAITS[spec.task].is_of_whole_picture)
    kinds, shipped, cpu = list(files), files["ort"], target.cpu if target.cpu in CPUS else None
    with ExitStack() as running:
        left_out, emulated = _why_not_emulated(target, counter), None
        if target.machine == "aarch64" and cpu and counter:
            try:
                emulated = running.enter_context(board_outputs(counter, shipped, cpu, [x for _, x in few], _SECONDS))
            except OSError as cause:
                left_out = f"not run: {cause.strerror or cause}"
        memory = running.enter_context(peak_memory([files[kind] for kind in kinds], shipped))
        here = _forms_here(fp32, files, "int8" if ships_int8 else "simplified")
        changes = compare_forms(here, tensors, parts)

        def finish() -> Chain:
            peaks = {kind: peak for kind, peak in zip(kinds, memory(), strict=True) if peak is not None}
            if emulated is None:
                return Chain(changes, peaks, cpu, left_out)
            try:
                said = emulated()
            except EdgeError as cause:
                return Chain(changes, peaks, cpu, f"not run: {cause}")
            answers = iter(said)
            first, ort = here[0], msgspec.structs.replace(here[-1], against=None)
            arm = compare_forms((first, ort, Form("arm", "ort", lambda _: next(answers))), few[: len(said)], parts)
            wrong = "not compared: its outputs have other shapes, or are no finite numbers"
            return Chain({**changes, **arm}, peaks, cpu, "" if arm else wrong)

        yield finish


def _forms_here(fp32: Session, files: Mapping[StepKind, Path], before: StepKind) -> list[Form]:
    steps: tuple[tuple[StepKind, StepKind], ...] = (("simplified", "fp32"), ("int8", "simplified"), ("ort", before))
    made = [Form("fp32", None, _taking(fp32.clone(), "fp32"))]
    for kind, against in steps:
        session = Session(files[kind].read_bytes(), SessionSettings(), kind)
        made.append(Form(kind, against, _taking(session, kind)))
    return made


def _taking(session: Session, kind: StepKind) -> Callable[[Inputs], Sequence[Tensor]]:
    return lambda inputs: session.run(inputs[kind == "ort"])
