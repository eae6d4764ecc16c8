"""distill-check as a step of a build: the model that is about to be quantized is the student."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx

from edge_sdk.bundle.manifest import Distillation, Manifest
from edge_sdk.bundle.model_spec import Gates, ModelSpec
from edge_sdk.core.errors import AccuracyGateError, DataError, ModelError
from edge_sdk.core.files import open_regular
from edge_sdk_tools.check.gate import CheckedModel
from edge_sdk_tools.datasets.dataset import Dataset
from edge_sdk_tools.distillation.gate import DistillReport, check_student
from edge_sdk_tools.evaluate.evaluation import OnProgress
from edge_sdk_tools.evaluate.model import Subject, from_checked, open_subject
from edge_sdk_tools.evaluate.participants import pair_up, without_calibration
from edge_sdk_tools.evaluate.predictions import Participant
from edge_sdk_tools.evaluate.statistics import Interval
from edge_sdk_tools.graph.profile import interleaved_latency_ms
from edge_sdk_tools.jobs.runner import JobRunner
from edge_sdk_tools.jobs.store import key_of


class Distilled(msgspec.Struct, frozen=True):
    """A student that is good enough, and what its teacher would cost in its place.

    Attributes:
        promise: what the bundle says of it.
        teacher_quality: the teacher's figure against labels, with its interval; None without labels.
        teacher_file: the teacher's .onnx or .ort file.
        teacher_mb: its size with all weights, MB of 1e6 bytes.
        latency_ratio: median latency of the teacher over the student's, in one run here, one thread.
    """

    promise: Distillation
    teacher_quality: Interval | None
    teacher_file: Path
    teacher_mb: float
    latency_ratio: float


def check_distillation(
    spec: ModelSpec, checked: CheckedModel, dataset: Dataset, job_runner: JobRunner, on_progress: OnProgress
) -> Distilled | None:
    """Compare a checked model with the teacher that its model.toml names.

    Returns:
        What was found; None when no teacher is named: not checked.

    Raises:
        AccuracyGateError: the student is not good enough.
        ModelError: the teacher cannot be used, or the two cannot be compared.
    """
    if spec.teacher is None:
        return None
    student = from_checked(spec.name, spec, checked)
    teacher = open_subject(Path(spec.teacher.model))
    if teacher.name == student.name:
        teacher.name = f"{teacher.name} ({spec.teacher.model})"
    images = without_calibration([teacher], dataset)
    if not len(images):
        raise DataError(f"every evaluation image calibrated {teacher.name}, the teacher; give others with --evaluation")
    participants = pair_up([student, teacher], spec.teacher.labels)
    report = job_runner.once(
        lambda: check_student(participants, images, spec.gates, on_progress=on_progress),
        key=_key(participants, images, spec.gates),
        result=DistillReport,
    )
    if not report.verdict.passed:
        raise AccuracyGateError(
            f"{student.name} is not its teacher's equal: {report.verdict.line}; `edge-sdk distill-check` shows "
            "where, gates.distill_max_drop_points and distill_min_agreement set the limit"
        )
    file = _file_of(Path(spec.teacher.model), teacher)
    quality = report.evaluation.quality
    return Distilled(
        promise=_promise(report, teacher),
        teacher_quality=quality[0].reference if quality else None,
        teacher_file=file,
        teacher_mb=_size_mb(file),
        latency_ratio=_latency_ratio(teacher, student, on_progress),
    )


def _file_of(path: Path, teacher: Subject) -> Path:
    if isinstance(teacher.spec, Manifest):
        return path / teacher.spec.variants[0].file
    return Path(teacher.spec.model)


def _size_mb(file: Path) -> float:
    try:
        open_regular(file).close()  # libraries would wait at a pipe that has taken its place
    except OSError as cause:
        raise ModelError(f"{file}: cannot be read any more: {cause.strerror}") from cause
    return (file.stat().st_size if file.suffix == ".ort" else onnx.load(file).ByteSize()) / 1e6


def _latency_ratio(teacher: Subject, student: Subject, on_progress: OnProgress) -> float:
    tensors = [np.zeros(subject.session.input_shape, subject.session.input_dtype) for subject in (teacher, student)]
    theirs, mine = interleaved_latency_ms(
        [lambda: teacher.session.run(tensors[0]), lambda: student.session.run(tensors[1])],
        lambda done, total: on_progress("measure latency", done, total),
    )
    return theirs / mine


def _key(participants: Sequence[Participant], images: Dataset, gates: Gates) -> str:
    """Names the comparison by all that decides it."""
    models = [(s.name, s.digest, s.labels, _reading(s.spec), p.class_ids) for p in participants for s in [p.subject]]
    return key_of("distillation", models, gates, images, *images.mask_contents())


def _reading(spec: ModelSpec | Manifest) -> tuple[object, ...]:
    """All that says how a model is fed and read."""
    return spec.task, spec.decoder, spec.input, spec.thresholds, spec.classification, spec.detection


def _promise(report: DistillReport, teacher: Subject) -> Distillation:
    verdict, evaluation = report.verdict, report.evaluation
    figure = next(iter((*evaluation.quality, *evaluation.agreement)))
    return Distillation(
        teacher=teacher.name,
        teacher_sha256=teacher.digest,
        metric=verdict.metric,
        student=figure.value.value,
        teacher_value=figure.reference.value if figure.reference else None,
        low=verdict.low,
        high=verdict.high,
        images=evaluation.images,
        limit=verdict.limit,
        within_noise=verdict.within_noise,
        line=verdict.line,
    )
