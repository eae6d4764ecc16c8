"""distill-check: compare a student with its teacher on the same images, and decide whether it passes the gate.

The check requires two models of the same task whose labels can be matched, and ensures a verdict with its reasons.
Input size, preprocessing and order of labels may differ. The figure itself is judged; its interval says how certain it
is. A labels file in another order than the outputs is detected where two models agree by class number and not by label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from edge_sdk.bundle.model_spec import Gates, ModelSpec, TeacherSpec, load_model_spec
from edge_sdk.core.errors import AccuracyGateError, ModelError, UsageError
from edge_sdk_tools.datasets.dataset import Dataset
from edge_sdk_tools.distillation.paired import ClassRow, compared_classes, mcnemar
from edge_sdk_tools.evaluate.evaluation import ENOUGH_IMAGES, Evaluation, OnProgress, constant_answer, summarise
from edge_sdk_tools.evaluate.model import Subject, open_subjects
from edge_sdk_tools.evaluate.participants import check_there, choose_images, pair_up
from edge_sdk_tools.evaluate.predictions import Observed, Participant, observe
from edge_sdk_tools.evaluate.statistics import Figure, Interval, difference_bounds
from edge_sdk_tools.evaluate.tasks import TASKS, CalibrationError, Divergence, WorstImage, said

TEMPERATURES = (1.0, 2.0, 4.0)
"""Softmax temperatures that distillation commonly uses; 1 is the plain probabilities."""

_SURELY_MORE = 0.1
_SEVERAL = 2  # classes


def check_label_order(observed: Observed) -> None:
    """Refuse a student and a teacher whose labels are in different orders; this works for classifiers only.

    Raises:
        ModelError: significantly more images agree by class number than by label.
    """
    if observed.task != "classification" or len(observed.records) < ENOUGH_IMAGES:
        return
    student, teacher = said(observed, 0), said(observed, 1)
    real = (student < observed.classes) & (teacher < observed.classes)
    if not real.any():
        return
    student, teacher = student[real], teacher[real]
    by_label, by_number = student == teacher, student == observed.participants[1].class_ids[teacher]
    # One class may agree by accident, for example where a model always gives the same answer.
    seen = len(np.unique(teacher[by_number & ~by_label]))
    if seen >= _SEVERAL and difference_bounds(by_number, by_label)[0] > _SURELY_MORE:
        first, second = (_with_labels(p.subject) for p in observed.participants)
        raise ModelError(
            f"labels: {first} and {second} agree on {by_number.mean():.0%} of {len(by_label)} images by the number of "
            f"the class and on {by_label.mean():.0%} by its label, so the labels of one of them are in another order "
            "than its outputs; expected one label a line in the order in which that model was trained"
        )


def _with_labels(subject: Subject) -> str:
    return f"{subject.name} ({subject.spec.labels})" if isinstance(subject.spec, ModelSpec) else subject.name


_CLOSE_POINTS = 0.1  # this near to the limit, one digit would not show on which side the figure is
_ROUNDING = 1e-9  # tolerance for floating point: a figure at the limit passes


class Verdict(msgspec.Struct, frozen=True):
    """The verdict of the distillation gate.

    Attributes:
        passed: whether the figure reaches the limit.
        metric: name of the metric that was judged.
        value: the student's figure minus the teacher's, -1 to 1, or their agreement, 0-1.
        low, high: 95 % interval of `value`.
        limit: the least `value` that passes.
        within_noise: whether the interval of the difference contains zero, so that these images do not tell the two
            models apart. None where agreement was judged.
        inconclusive: whether the limit is inside the interval, or the images are too few for any interval, so that
            other images might have given the other verdict.
        line: the whole verdict in one line of text.
    """

    passed: bool
    metric: str
    value: float
    low: float
    high: float
    limit: float
    within_noise: bool | None
    inconclusive: bool
    line: str


def judge(evaluation: Evaluation, gates: Gates) -> Verdict:
    """Judge a student by its quality where the images have labels, else by its agreement with the teacher.

    Args:
        evaluation: the evaluation of the student, with the teacher as reference.
        gates: the gates; `distill_max_drop_points` or `distill_min_agreement` is used.
    """
    if evaluation.quality:
        return _judge_drop(evaluation.quality[0], evaluation.images, gates.distill_max_drop_points)
    return _judge_agreement(evaluation.agreement[0], evaluation.images, gates.distill_min_agreement)


def _judge_drop(figure: Figure, images: int, allowed_points: float) -> Verdict:
    if figure.reference is None or figure.difference is None:
        raise ValueError(f"{figure.name} has no reference")
    found, limit = figure.difference, -allowed_points / 100
    points, low, high = (100 * x for x in (found.value, found.low, found.high))
    digits = 2 if abs(points + allowed_points) < _CLOSE_POINTS else 1
    doubt = _doubt(found, limit, images)
    line = (
        f"{figure.name} {figure.value.value:.1%}, the teacher's {figure.reference.value:.1%}: "
        f"{_signed(points, digits)} points [{_signed(low, digits)} to {_signed(high, digits)}], "
        f"at most {allowed_points:g} below allowed"
        f"{'; within noise of its teacher' if found.contains_zero else ''}{doubt}"
    )
    passed = found.value >= limit - _ROUNDING
    return Verdict(
        passed, figure.name, found.value, found.low, found.high, limit, found.contains_zero, bool(doubt), line
    )


def _judge_agreement(figure: Figure, images: int, limit: float) -> Verdict:
    found = figure.value
    doubt = _doubt(found, limit, images)
    line = (
        f"{figure.name} {found.value:.1%} [{found.low:.1%} to {found.high:.1%}], at least {limit:.1%} expected{doubt}"
    )
    passed = found.value >= limit - _ROUNDING
    return Verdict(passed, figure.name, found.value, found.low, found.high, limit, None, bool(doubt), line)


def _doubt(found: Interval, limit: float, images: int) -> str:
    if found.low < limit < found.high:
        return "; inconclusive: the limit lies inside the interval, more images would tell"
    if images < ENOUGH_IMAGES:
        return f"; inconclusive: {images} images tell little, {ENOUGH_IMAGES} or more would"
    return ""


def _signed(points: float, digits: int) -> str:
    """Write a difference in points with its sign, such as `+0.2` or `-19.4`; never write a minus before zero."""
    return f"{round(points, digits) + 0.0:+.{digits}f}"


_WORST = 10
_FAR_BELOW_POINTS = 10


class DistillReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a distillation check.

    Attributes:
        evaluation: the evaluation of the student, with the teacher as reference.
        p_value: McNemar's exact test over all labelled images or objects; None without labels and for class maps.
        divergences: divergences between the probabilities of both models, for classifiers.
        calibration: calibration error of the confidences; None for class maps.
        classes: the classes that occur, the most significant differences first.
        worst: images on which the models differ most.
        verdict: the verdict of the gate.
    """

    evaluation: Evaluation
    p_value: float | None
    divergences: tuple[Divergence, ...]
    calibration: CalibrationError | None
    classes: tuple[ClassRow, ...]
    worst: tuple[WorstImage, ...]
    verdict: Verdict


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
        data: images with or without labels; the student's [data] evaluation by default.
        max_drop_points: overrides the student's gates.distill_max_drop_points.
        min_agreement: overrides the student's gates.distill_min_agreement.
        temperature: a further softmax temperature to compare at.
        max_images: the largest number of images to use, evenly spread; None: all.
        jobs: number of threads; one for each core by default.
        on_progress: called with the progress.

    Returns:
        The report; `verdict.passed` says whether the gate was passed.

    Raises:
        AccuracyGateError: one model gives the same answer for every image, or the teacher finds nothing at all.
        ModelError: the labels of one of the models are in another order than its outputs.
        EdgeError: a model, the images or an argument cannot be used.
    """
    for name, value in (("max-drop-points", max_drop_points), ("min-agreement", min_agreement)):
        if value is not None and not math.isfinite(value):
            raise UsageError(f"--{name} is {value}, expected a number")
    check_there(data)
    on_progress("load", 0, 1)
    spec = load_model_spec(student) if student.suffix == ".toml" else None
    section = _teacher_of(spec, student, teacher)
    subjects = open_subjects([student, Path(section.model)])
    on_progress("load", 1, 1)
    participants = pair_up(subjects, section.labels)
    gates = _gates(spec, max_drop_points, min_agreement)
    folder = data or (Path(spec.data.evaluation) if spec and spec.data.evaluation else None)
    if folder is None:
        raise UsageError(f"{student}: no images to compare on: give --data, or [data] evaluation in model.toml")
    dataset, calibrated = choose_images(subjects, folder, max_images)
    temperatures = tuple(sorted({*TEMPERATURES, *([temperature] if temperature else [])}))
    return check_student(
        participants,
        dataset,
        gates,
        temperatures,
        data=str(folder),
        calibrated=calibrated,
        jobs=jobs,
        on_progress=on_progress,
    )


def check_student(
    participants: Sequence[Participant],
    dataset: Dataset,
    gates: Gates,
    temperatures: tuple[float, ...] = TEMPERATURES,
    *,
    data: str = "",
    calibrated: int = 0,
    jobs: int | None = None,
    on_progress: OnProgress = lambda _step, _done, _total: None,
) -> DistillReport:
    """Compare two loaded models, the student first, and return the report with its verdict."""
    observed = observe(
        participants, dataset, lambda done: on_progress("compare with teacher", done, len(dataset)), jobs
    )
    constant = [line for which in (0, 1) if (line := constant_answer(observed, which))]
    # If both models give one answer for all images, the images may all show the same; this is only a warning.
    if len(constant) == 1 and len(observed.records) >= ENOUGH_IMAGES:
        raise AccuracyGateError(constant[0])
    check_label_order(observed)
    evaluation = summarise(observed, data, calibrated, on_progress)
    warnings = (*evaluation.warnings, *_teacher_warnings(participants, evaluation))
    task = TASKS[observed.task]
    pairs = task.pairs(observed)
    return DistillReport(
        evaluation=msgspec.structs.replace(evaluation, warnings=warnings),
        p_value=mcnemar(pairs.teacher, pairs.student) if pairs and evaluation.quality else None,
        divergences=task.divergences(observed, temperatures),
        calibration=task.calibration(observed),
        classes=compared_classes(pairs, observed.answers) if pairs else (),
        worst=task.worst(observed, _WORST),
        verdict=judge(evaluation, gates),
    )


def _teacher_warnings(participants: Sequence[Participant], evaluation: Evaluation) -> tuple[str, ...]:
    """Return a warning where teacher and student are the same model, or the teacher is far worse than its student."""
    student, teacher = (p.subject for p in participants)
    if student.is_same_as(teacher):
        return (f"{student.name} and {teacher.name} are the very same model: a student is never worse than itself",)
    difference = evaluation.quality[0].difference if evaluation.quality else None
    if difference is None or 100 * difference.low < _FAR_BELOW_POINTS:
        return ()
    return (
        f"the teacher lies {100 * difference.value:.0f} points below its student: are the student's labels in the "
        "order of its outputs? Class ids of the data are read by them",
    )


def _teacher_of(spec: ModelSpec | None, path: Path, teacher: Path | None) -> TeacherSpec:
    section = spec.teacher if spec else None
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
