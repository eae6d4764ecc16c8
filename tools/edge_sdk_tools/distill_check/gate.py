"""distill-check: a student beside its teacher on the same images, and whether it may go on.

Requires two models of the same task whose labels can be matched; ensures a verdict with its reasons. Input size,
preprocessing and order of labels may differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edge_sdk.errors import AccuracyGateError, DataError, UsageError
from edge_sdk.model_spec import Gates, ModelSpec, TeacherSpec
from edge_sdk_tools.dataset import Dataset, Format, Skipped
from edge_sdk_tools.distill_check.divergence import (
    TEMPERATURES,
    CalibrationError,
    Divergence,
    calibration_errors,
    divergences_at,
)
from edge_sdk_tools.distill_check.outcomes import pairs_of
from edge_sdk_tools.distill_check.paired import ClassRow, class_rows, mcnemar
from edge_sdk_tools.distill_check.verdict import Verdict, judge_agreement, judge_drop
from edge_sdk_tools.distill_check.worst import WorstImage, worst_images
from edge_sdk_tools.evaluate import (
    Figure,
    Observed,
    OnProgress,
    Participant,
    Subject,
    agreement_metrics,
    choose_images,
    compare,
    figure_of,
    observe,
    open_subject,
    pair_up,
    quality_metrics,
    resample,
)
from edge_sdk_tools.evaluate.doubts import constant_answer, doubts_about

_WORST = 10
_FAR_BELOW_POINTS = 10


class DistillReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        student, teacher: their names.
        task: of both.
        data: where the images are, and `format` as what they were read.
        images: that both saw.
        quality: against the labels, student beside teacher; empty without labels.
        agreement: of the student with its teacher.
        p_value: McNemar's exact test over all labelled images or objects; None without labels and for class maps.
        divergences: of probabilities, for classifiers.
        calibration: how honest the confidences are; None for class maps.
        classes: those that occur, the surest differences first.
        worst: images to look at.
        verdict: of the gate.
        skipped: files that could not be read.
        calibrated: images left out because they calibrated one of the two.
        warnings: what a reader should know before believing.
    """

    student: str
    teacher: str
    task: str
    data: str
    format: Format
    images: int
    quality: tuple[Figure, ...]
    agreement: tuple[Figure, ...]
    p_value: float | None
    divergences: tuple[Divergence, ...]
    calibration: CalibrationError | None
    classes: tuple[ClassRow, ...]
    worst: tuple[WorstImage, ...]
    verdict: Verdict
    skipped: tuple[Skipped, ...]
    calibrated: int
    warnings: tuple[str, ...]


def distill_check(
    student: Path,
    teacher: Path | None = None,
    data: Path | None = None,
    *,
    max_drop_points: float | None = None,
    min_agreement: float | None = None,
    temperature: float | None = None,
    max_images: int | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = lambda _step, _done, _total: None,
) -> DistillReport:
    """Compare a student with its teacher.

    Args:
        student: a model.toml or a bundle.
        teacher: a model.toml or a bundle; the student's [teacher] by default.
        data: images, labelled or not; the student's [data] evaluation by default.
        max_drop_points: overrides the student's gates.distill_max_drop_points.
        min_agreement: overrides its gates.distill_min_agreement.
        temperature: one more softmax temperature to compare at.
        max_images: so many at most, evenly spread.
        jobs: threads; one a core by default.
        on_progress: for progress bars.

    Returns:
        The report; `verdict.passed` says whether the gate was passed.

    Raises:
        AccuracyGateError: a model says the same of every image, or the teacher finds nothing at all.
        EdgeError: of the family that says who can mend it.
    """
    for name, value in (("max-drop-points", max_drop_points), ("min-agreement", min_agreement)):
        if value is not None and not math.isfinite(value):
            raise UsageError(f"--{name} is {value}, expected a number")
    on_progress("load", 0, 2)
    first = open_subject(student)
    section = _teacher_of(first, student, teacher)
    on_progress("load", 1, 2)
    second = open_subject(Path(section.model))
    on_progress("load", 2, 2)
    participants = pair_up([first, second], section.labels)
    spec = first.spec if isinstance(first.spec, ModelSpec) else None
    gates = _gates(spec, max_drop_points, min_agreement)
    folder = data or (Path(spec.data.evaluation) if spec and spec.data.evaluation else None)
    if folder is None:
        raise UsageError(f"{student}: no images to compare on: give --data, or [data] evaluation in model.toml")
    dataset, calibrated = choose_images([first, second], folder, max_images)
    temperatures = tuple(sorted({*TEMPERATURES, *([temperature] if temperature else [])}))
    report = check_student(participants, dataset, gates, temperatures, str(folder), jobs=jobs, on_progress=on_progress)
    return msgspec.structs.replace(report, calibrated=calibrated)


def check_student(
    participants: Sequence[Participant],
    dataset: Dataset,
    gates: Gates,
    temperatures: tuple[float, ...] = TEMPERATURES,
    data: str = "",
    *,
    jobs: int | None = None,
    on_progress: OnProgress = lambda _step, _done, _total: None,
) -> DistillReport:
    """Compare two loaded models.

    Args:
        participants: the student, then its teacher.
        dataset: read with the student's labels.
        gates: what is judged by.
        temperatures: for the divergence of probabilities.
        data: what the report calls the images.
        jobs: threads.
        on_progress: for progress bars.

    Raises:
        As `distill_check`.
    """
    observed = observe(
        participants, dataset, lambda done: on_progress("compare with teacher", done, len(dataset)), jobs
    )
    if not observed.records:
        raise DataError(f"none of {len(observed.skipped)} images can be read: {observed.skipped[0].reason}")
    for which in (0, 1):
        if wrong := constant_answer(observed, which):
            raise AccuracyGateError(wrong)
    return _report(observed, gates, temperatures, data)


def _report(observed: Observed, gates: Gates, temperatures: tuple[float, ...], data: str) -> DistillReport:
    student, teacher = (p.subject for p in observed.participants)
    weights = resample(len(observed.records))
    agreement = tuple(figure_of(metric, weights) for metric in agreement_metrics(observed))
    quality: tuple[Figure, ...] = ()
    if observed.dataset.truths is not None:
        both = zip(quality_metrics(observed, 0), quality_metrics(observed, 1), strict=True)
        quality = tuple(compare(mine, theirs, weights) for mine, theirs in both)
    pairs = pairs_of(observed)
    return DistillReport(
        student=student.name,
        teacher=teacher.name,
        task=observed.task,
        data=data,
        format=observed.dataset.format,
        images=len(observed.records),
        quality=quality,
        agreement=agreement,
        p_value=mcnemar(pairs.teacher, pairs.student) if pairs and quality else None,
        divergences=divergences_at(observed, temperatures),
        calibration=calibration_errors(observed),
        classes=class_rows(pairs, observed.answers) if pairs else (),
        worst=worst_images(observed, observed.answers, _WORST),
        verdict=judge_drop(quality[0], gates) if quality else judge_agreement(agreement[0], gates),
        skipped=(*observed.dataset.images.skipped, *observed.skipped),
        calibrated=0,
        warnings=(*doubts_about(observed), *_doubts_about_teacher(quality)),
    )


def _doubts_about_teacher(quality: tuple[Figure, ...]) -> tuple[str, ...]:
    """A teacher far below its student is no teacher, or was read with labels in another order."""
    figure = next(iter(quality), None)
    if figure is None or figure.difference is None or 100 * figure.difference.low < _FAR_BELOW_POINTS:
        return ()
    return (
        f"the teacher lies {100 * figure.difference.value:.0f} points below its student: are the student's labels in "
        "the order of its outputs? Class ids of the data are read by them",
    )


def _teacher_of(student: Subject, path: Path, teacher: Path | None) -> TeacherSpec:
    section = student.spec.teacher if isinstance(student.spec, ModelSpec) else None
    if teacher is not None:
        return TeacherSpec(str(teacher), section.labels if section else {})
    if section is None:
        raise UsageError(f"{path}: no teacher to compare with: give --teacher teacher.toml, or [teacher] in model.toml")
    return section


def _gates(spec: ModelSpec | None, max_drop_points: float | None, min_agreement: float | None) -> Gates:
    gates = spec.gates if spec else Gates()
    if max_drop_points is not None:
        gates = msgspec.structs.replace(gates, distill_max_drop_points=max_drop_points)
    if min_agreement is not None:
        gates = msgspec.structs.replace(gates, distill_min_agreement=min_agreement)
    return gates
