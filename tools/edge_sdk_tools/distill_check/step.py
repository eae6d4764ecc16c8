"""distill-check as a step of a build: the model that is about to be quantized is the student."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import cv2

from edge_sdk.errors import AccuracyGateError, DataError
from edge_sdk.manifest import Distillation
from edge_sdk.model_spec import Gates, ModelSpec
from edge_sdk_tools.candidates import Workshop, encoded, package_versions, source_digest
from edge_sdk_tools.check import CheckedModel
from edge_sdk_tools.dataset import Dataset, MaskTruth
from edge_sdk_tools.distill_check.gate import DistillReport, check_student
from edge_sdk_tools.evaluate import (
    OnProgress,
    Participant,
    Subject,
    from_checked,
    open_subject,
    pair_up,
    without_calibration,
)


def check_distillation(
    spec: ModelSpec, checked: CheckedModel, dataset: Dataset, workshop: Workshop, on_progress: OnProgress
) -> Distillation | None:
    """Compare a checked model with the teacher that its model.toml names.

    Args:
        spec: names the teacher, and the gates.
        checked: the float model.
        dataset: images that calibrate nothing here.
        workshop: may remember it of an earlier build.
        on_progress: for progress bars.

    Returns:
        What the bundle promises of it; None when no teacher is named: not checked.

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
    report = workshop.once(
        lambda: check_student(participants, images, spec.gates, on_progress=on_progress),
        key=_key(participants, images, spec.gates),
        result=DistillReport,
    )
    if not report.verdict.passed:
        raise AccuracyGateError(
            f"{student.name} is not its teacher's equal: {report.verdict.line}; `edge-sdk distill-check` shows "
            "where, gates.distill_max_drop_points and distill_min_agreement set the limit"
        )
    return _promise(report, teacher)


def _key(participants: Sequence[Participant], images: Dataset, gates: Gates) -> str:
    """Names the comparison by all that decides it."""
    masks = [hashlib.sha256(t.data()).digest() for t in images.truths or () if isinstance(t, MaskTruth)]
    models = [
        (s.digest, s.labels, s.spec.input, s.spec.decoder, s.spec.thresholds, p.class_ids.tolist())
        for p in participants
        for s in [p.subject]
    ]
    whole = encoded([source_digest(), package_versions(), cv2.__version__, models, gates, images, masks])
    return f"distillation-{hashlib.sha256(whole).hexdigest()}"


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
