"""distill-check: a student beside its teacher on the same images, and whether it may go on.

Requires two models of the same task whose labels can be matched; ensures a verdict with its reasons. Input size,
preprocessing and order of labels may differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edge_sdk.bundle.model_spec import Gates, ModelSpec, TeacherSpec, load_model_spec
from edge_sdk.core.errors import AccuracyGateError, UsageError
from edge_sdk_tools.dataset import Dataset
from edge_sdk_tools.distill_check.divergence import (
    TEMPERATURES,
    CalibrationError,
    Divergence,
    calibration_errors,
    divergences_at,
)
from edge_sdk_tools.distill_check.label_order import check_label_order
from edge_sdk_tools.distill_check.outcomes import pairs_of
from edge_sdk_tools.distill_check.paired import ClassRow, class_rows, mcnemar
from edge_sdk_tools.distill_check.verdict import Verdict, judge
from edge_sdk_tools.distill_check.worst import WorstImage, worst_images
from edge_sdk_tools.evaluate import (
    ENOUGH_IMAGES,
    Evaluation,
    OnProgress,
    Participant,
    check_there,
    choose_images,
    observe,
    open_subjects,
    pair_up,
    summarise,
)
from edge_sdk_tools.evaluate.doubts import constant_answer

_WORST = 10
_FAR_BELOW_POINTS = 10


class DistillReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        evaluation: of the student; its reference is the teacher.
        p_value: McNemar's exact test over all labelled images or objects; None without labels and for class maps.
        divergences: of probabilities, for classifiers.
        calibration: how honest the confidences are; None for class maps.
        classes: those that occur, the surest differences first.
        worst: images to look at.
        verdict: of the gate.
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
        AccuracyGateError: one model says the same of every image, or the teacher finds nothing at all.
        ModelError: the labels of one of the two are in another order than its outputs.
        EdgeError: of the family that says who can mend it.
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
    """Compare two loaded models.

    Args:
        participants: the student, then its teacher.
        dataset: read with the student's labels.
        gates: what is judged by.
        temperatures: for the divergence of probabilities.
        data: what the report calls the images.
        calibrated: images left out because they calibrated one of the two.
        jobs: threads.
        on_progress: for progress bars.

    Raises:
        As `distill_check`.
    """
    observed = observe(
        participants, dataset, lambda done: on_progress("compare with teacher", done, len(dataset)), jobs
    )
    constant = [line for which in (0, 1) if (line := constant_answer(observed, which))]
    # Both may be right to say the same of images that show the same; that is a doubt, and no verdict.
    if len(constant) == 1 and len(observed.records) >= ENOUGH_IMAGES:
        raise AccuracyGateError(constant[0])
    check_label_order(observed)
    evaluation = summarise(observed, data, calibrated, on_progress)
    warnings = (*evaluation.warnings, *_doubts_about_teacher(participants, evaluation))
    pairs = pairs_of(observed)
    return DistillReport(
        evaluation=msgspec.structs.replace(evaluation, warnings=warnings),
        p_value=mcnemar(pairs.teacher, pairs.student) if pairs and evaluation.quality else None,
        divergences=divergences_at(observed, temperatures),
        calibration=calibration_errors(observed),
        classes=class_rows(pairs, observed.answers) if pairs else (),
        worst=worst_images(observed, observed.answers, _WORST),
        verdict=judge(evaluation, gates),
    )


def _doubts_about_teacher(participants: Sequence[Participant], evaluation: Evaluation) -> tuple[str, ...]:
    """A teacher far below its student is no teacher, or was read with labels in another order."""
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
