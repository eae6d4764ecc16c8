"""The build step `prove`: measure the converted model, and make its golden inputs and outputs.

The step requires a converted model. It ensures that the share of integer convolutions and the agreement with FP32 are
known, and that golden outputs come from the model before its conversion, never from the file that they will test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.bundle import energies_of, noise_of
from edge_sdk.bundle.manifest import Agreement, Golden, InputTensor
from edge_sdk.bundle.model_spec import InputSpec, ModelSpec
from edge_sdk.core.errors import AccuracyGateError, DataError, one_line
from edge_sdk.core.frame import Image, Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk_tools.bundle_folder import golden_file
from edge_sdk_tools.datasets.dataset import Dataset
from edge_sdk_tools.datasets.images import ImageFile, ImageSet
from edge_sdk_tools.datasets.reading import ENOUGH_TO_SPLIT
from edge_sdk_tools.evaluate.evaluation import ENOUGH_IMAGES, Evaluation, describe, summarise
from edge_sdk_tools.evaluate.metrics import WorstImage
from edge_sdk_tools.evaluate.model import Subject
from edge_sdk_tools.evaluate.participants import pair_up
from edge_sdk_tools.evaluate.predictions import Observed, observe
from edge_sdk_tools.evaluate.tasks import TASKS
from edge_sdk_tools.graph.profile import interleaved_latency_ms
from edge_sdk_tools.jobs.runner import OnProgress
from edge_sdk_tools.quantize.convert import Converted, integer_mac_share

_SAMPLES = 3
_WORST = 12
GOLDEN_IMAGES = 2


class Sample(msgspec.Struct, frozen=True):
    """The name of one image, and the results of FP32 and INT8 for it in words, for a person to compare."""

    image: str
    fp32: str
    int8: str


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a converted model. All but the times are the same on every machine.

    Attributes:
        evaluation: the converted model compared with the FP32 model, on images that calibration did not use.
        agreement: the agreement with FP32 that the manifest states.
        integer_mac_share: of the multiply-accumulates of convolutions outside the float tail, 0-1.
        model_mb: size of the model file, MB of 1e6 bytes.
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

    Raises:
        AccuracyGateError: the float model finds nothing at all, so that nothing can be compared.
        DataError: no evaluation image can be read.
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
    share = integer_mac_share(converted.model, macs, converted.model.parent)
    return Proof(
        evaluation=evaluation,
        agreement=agreement_of(observed, evaluation),
        integer_mac_share=share,
        model_mb=len(model) / 1e6,
        samples=tuple(_sample(file, subjects) for file in readable.spread(_SAMPLES).images),
        worst=TASKS[observed.task].worst(observed, _WORST),
        images=ImageSet(tuple(ImageFile(i.path, i.sha256, i.size_wh) for i in readable.images), readable.skipped),
        halves=_halves(observed),
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


def _halves(observed: Observed) -> tuple[tuple[Evaluation, Agreement], ...]:
    if observed.dataset.truths is None or not ENOUGH_IMAGES <= len(observed.records) < ENOUGH_TO_SPLIT:
        return ()
    halves = [observed.picked(places) for places in observed.dataset.places_dealt(2)]
    try:
        evaluations = [summarise(half, "half of the evaluation images") for half in halves]
    except (AccuracyGateError, DataError):
        return ()  # a half shows nothing
    return tuple((one, agreement_of(half, one)) for half, one in zip(halves, evaluations, strict=True))


def agreement_of(observed: Observed, evaluation: Evaluation) -> Agreement:
    """Return the agreement of the first of two models with the second, for the manifest."""
    value = evaluation.agreement[0].value
    task, images = TASKS[observed.task], len(observed.records)
    return Agreement(task.agreement_metric, value.value, value.low, value.high, images, task.compared(observed))


def _sample(file: ImageFile, subjects: Sequence[Subject]) -> Sample:
    image = file.read()
    int8, fp32 = (describe(subject.open()(image).result) for subject in subjects)
    return Sample(one_line(file.path.name), fp32, int8)


def make_golden(
    spec: InputSpec,
    taken: InputTensor | None,
    model: Path,
    images: Sequence[Image],
    file: str,
    reference: Callable[[Image], Sequence[Tensor]] | None = None,
) -> tuple[bytes, Golden]:
    """Make golden inputs, which are resized images, and the outputs of the model before its conversion for them.

    `taken` is what the model takes; where that ships in signed integers, the one before conversion takes unsigned ones.
    `reference` gives the float model's outputs. Returns the bytes of the .npz file, and its entry in the manifest.
    """
    session = Session(model.read_bytes(), SessionSettings(), "the model before conversion")
    is_unsigned = taken is not None and session.input_dtype == np.uint8
    prepare = Prepare(spec, msgspec.structs.replace(taken, dtype="uint8") if taken and is_unsigned else taken)
    pairs: list[tuple[Image, list[Tensor]]] = []
    energies: list[list[NDArray[np.float64]]] = []
    for image in images:
        resized = prepare.resize(image).copy()
        outputs = session.run(prepare.normalise(resized))
        pairs.append((resized, [output.copy() for output in outputs]))
        if reference is not None:
            energies.append([energies_of(a, b) for a, b in zip(outputs, reference(resized), strict=True)])
    return golden_file(file, pairs, noise_of(energies))
