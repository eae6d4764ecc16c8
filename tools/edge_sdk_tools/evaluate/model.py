"""The model that is measured: the float model of a model.toml, or the file in a bundle, opened once for each worker.

ONNX Runtime rewrites graphs when it loads them, and has rewritten some wrongly. A float model is therefore also run
without optimization, because a comparison of INT8 with FP32 would not show the fault. `OutputMemory` keeps the outputs
of a model that is compared with many others.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import MANIFEST_FILE, Manifest
from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.core.errors import IncompatibleError, ModelError, SessionError, UsageError, raising
from edge_sdk.core.frame import Frame, Image, Inferred, Result, Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import SessionSettings, onnxruntime_version
from edge_sdk.inference.session import Session
from edge_sdk.tasks.decoders import decoder_of, make_stage
from edge_sdk.tasks.spec import TRAITS, Thresholds, has_background
from edge_sdk_tools.check.gate import CheckedModel, check_model
from edge_sdk_tools.datasets.images import is_file


class OutputMemory:
    """Outputs of a model by the content of its input, up to `limit_mb` megabytes (1e6 bytes). Thread-safe."""

    def __init__(self, limit_mb: float = 500.0) -> None:
        self._left = limit_mb * 1e6
        self._outputs: dict[bytes, tuple[Tensor, ...]] = {}
        self._counting = threading.Lock()

    def __len__(self) -> int:
        return len(self._outputs)

    def recall(self, tensor: Tensor, run: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return the outputs for a C-contiguous input, read-only; `run` computes them if they are not known."""
        key = hashlib.sha256(tensor.data).digest()
        known = self._outputs.get(key)
        if known is not None:
            return known
        outputs = run()
        kept = tuple(np.array(output) for output in outputs)
        for output in kept:
            output.flags.writeable = False
        size = sum(output.nbytes for output in kept)
        with self._counting:
            # Another thread may have run the same meanwhile.
            if key not in self._outputs and size <= self._left:
                self._left -= size
                self._outputs[key] = kept
        return outputs


_TOLERANCE = 1e-3  # of the largest value: fused kernels round differently, and in deep networks that adds up
_FLIPPED = 0.01  # share of whole numbers that may differ: rounding decides between nearly equal scores


def check_optimization(model: bytes, session: Session, spec: ModelSpec) -> None:
    """Raise ModelError if ONNX Runtime's optimization changes what the model computes on an image of noise."""
    plain = Session(model, SessionSettings(graph_level="disabled"), spec.model)
    prepare = Prepare(spec.input)
    width, height = spec.input.size_wh
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    tensor = prepare.normalise(prepare.resize(noise))
    for number, (got, expected) in enumerate(zip(session.run(tensor), plain.run(tensor), strict=True)):
        if problem := _difference(got, expected):
            runtime = f"ONNX Runtime {onnxruntime_version()}"
            raise ModelError(
                f"{spec.model}: {runtime} computes output {number} differently after its own graph optimization "
                f"({problem}), expected the same; export it in another way: a known cause is a MatMul by a vector "
                "after a Transpose, which a matrix of one column avoids"
            )


def _difference(got: Tensor, expected: Tensor) -> str:
    if not np.issubdtype(expected.dtype, np.floating):
        flipped = float(np.mean(got != expected))
        return f"{flipped:.1%} of its values" if flipped > _FLIPPED else ""
    known = np.isfinite(expected)
    largest = float(np.abs(expected[known]).max(initial=0))
    worst = float(np.abs(got[known] - expected[known]).max(initial=0))
    same = bool((known == np.isfinite(got)).all()) and worst <= _TOLERANCE * largest
    return "" if same else f"by up to {worst:.3g}, the largest value is {largest:.3g}"


_PROBABILITY_SLACK = 0.01

DIGEST_LENGTH = 16
"""How many hexadecimal digits of its SHA-256 a bundle keeps of each image that calibrated it."""


class Answer(msgspec.Struct, frozen=True, eq=False):
    """The outputs of a model for one image."""

    result: Result
    outputs: tuple[Tensor, ...]


Run: TypeAlias = Callable[[Image], Answer]
"""A function that runs a model on an image, uint8 (H, W, 3), BGR; for one thread."""


class Subject(msgspec.Struct, eq=False):
    """A loaded model, and how its outputs are read by its `labels`, which are in output order.

    Its `session` is loaded once, and every worker runs a clone of it; `digest` is the SHA-256 (hex) of the ONNX model
    or of a bundle's manifest. `calibration` has the first `DIGEST_LENGTH` digits of the SHA-256 of each image that
    calibrated it; `memory` keeps the outputs of a model that runs on the same images many times.
    """

    name: str
    spec: ModelSpec | Manifest
    labels: tuple[str, ...]
    session: Session
    digest: str
    calibration: Collection[str] = ()
    memory: OutputMemory | None = None

    @property
    def background(self) -> int:
        """1 if output 0 is the background, else 0."""
        return int(has_background(self.spec))

    @property
    def class_labels(self) -> tuple[str, ...]:
        """The labels by class id, without the background."""
        return self.labels[self.background :]

    def open(self, confidence: float | None = None) -> Run:
        """Return the model with its prepare step and its decoder; `confidence` replaces the spec's threshold."""
        spec, session, memory = self.spec, self.session.clone(), self.memory
        if confidence is not None:
            spec = msgspec.structs.replace(spec, thresholds=Thresholds(confidence, spec.thresholds.iou))
        prepare = Prepare.of(spec) if isinstance(spec, Manifest) else Prepare(spec.input)
        decode = make_stage(spec, self.labels, session.output_shapes)

        def run(image: Image) -> Answer:
            prepared = prepare(Frame(image, 0, 0.0, 0, "evaluation"))
            tensor = prepared.tensor
            outputs = session.run(tensor) if memory is None else memory.recall(tensor, lambda: session.run(tensor))
            return Answer(decode(Inferred(outputs, 0, prepared)), outputs)

        return run


def open_subject(path: Path) -> Subject:
    """Open a model.toml or a NAME.edge folder."""
    if path.suffix == ".toml":
        spec = load_model_spec(path)
        return from_checked(spec.name, spec, check_model(spec, None))
    if is_file(path / MANIFEST_FILE):
        return _from_bundle(path)
    with raising(UsageError, f"{path}: cannot be read"):
        what = "neither a model.toml nor a bundle" if path.exists() else "no such file or folder"
    raise UsageError(f"{path}: {what}, expected a model.toml (`edge-sdk init MODEL.onnx` writes one) or a NAME.edge")


def open_subjects(paths: Sequence[Path]) -> list[Subject]:
    """Open one or several; models of equal names get their paths appended, so that reports tell them apart."""
    subjects = [open_subject(path) for path in paths]
    names = [subject.name for subject in subjects]
    for subject, path in zip(subjects, paths, strict=True):
        if names.count(subject.name) > 1 and len(set(paths)) > 1:
            subject.name = f"{subject.name} ({path})"
    return subjects


def from_checked(name: str, spec: ModelSpec, checked: CheckedModel) -> Subject:
    """Return the float model that passed the check, ready to be measured.

    A ModelError says that ONNX Runtime's optimization changes what it computes, or that no decoder reads its outputs.
    """
    model = checked.proto.SerializeToString()
    session = Session(model, SessionSettings(), spec.model)
    check_optimization(model, session, spec)
    return probed(Subject(name, spec, checked.labels, session, checked.sha256))


def _from_bundle(path: Path) -> Subject:
    bundle = Bundle.open(path)
    promise = bundle.manifest
    try:
        session = Session.open(bundle, SessionSettings(intra_op_num_threads=1))
    except IncompatibleError as cause:
        raise ModelError(str(cause)) from cause
    name = f"{promise.name} ({promise.variants[0].precision}, {promise.target})"
    return probed(
        Subject(name, promise, bundle.labels(), session, bundle.digest, promise.provenance.calibration_digests)
    )


def probed(subject: Subject) -> Subject:
    """Run the model once on zeros; raise ModelError, before any image is read, if it does not fit its description."""
    where = subject.spec.model if isinstance(subject.spec, ModelSpec) else subject.name
    try:
        answer = subject.open()(np.zeros((32, 32, 3), np.uint8))
        _check_decoder(subject, answer.outputs)
    except SessionError as cause:
        raise ModelError(str(cause)) from cause
    except ModelError as cause:
        raise ModelError(f"{where}: {cause}") from cause
    return subject


def _check_decoder(subject: Subject, outputs: Sequence[Tensor]) -> None:
    """Refuse a decoder for probabilities on logits, or the reverse: FP32 and INT8 would agree on the wrong result."""
    spec, output = subject.spec, outputs[0]
    if not np.isfinite(output).all():
        return  # NaN is reported later, with the image that caused it
    if TRAITS[spec.task].is_of_whole_picture:
        total, are_shares = float(output.sum()), bool(((output >= 0) & (output <= 1 + _PROBABILITY_SLACK)).all())
        sum_to_1 = are_shares and abs(total - 1) < _PROBABILITY_SLACK
        is_wrong, why, instead = {
            "sigmoid": (not are_shares, "no probabilities", "sigmoid_logits"),
            "logits": (sum_to_1, "probabilities already (they sum to 1)", "softmax"),
            "softmax": (not sum_to_1, f"no probabilities (they sum to {total:.3g})", "logits"),
        }.get(spec.decoder, (False, "", ""))
        if is_wrong:
            raise ModelError(f'decoder: the outputs are {why}; set decoder = "{instead}"')
    decoder = decoder_of(spec)
    if (axis := decoder.box_axis) is not None and not decoder.reads_all and len(outputs) == 1:
        scores = np.moveaxis(output, axis, -1)[..., 4 : 4 + len(subject.labels)]
        lowest, highest = float(scores.min(initial=0.0)), float(scores.max(initial=0.0))
        if lowest < -_PROBABILITY_SLACK or highest > 1 + _PROBABILITY_SLACK:
            raise ModelError(
                f"decoder: {spec.decoder} reads scores from {lowest:.3g} to {highest:.3g}, expected 0 to 1; correct "
                "the decoder, or export the model with its last sigmoid"
            )
