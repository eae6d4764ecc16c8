"""distill-check: compare a student with its teacher on the same images, and decide whether it passes the gate.

Two models of one task whose labels can be matched get a verdict with its reasons; input size, preprocessing and order
of labels may differ. The figure itself is judged; its interval says how certain it is. Class by class, McNemar's exact
test (1947) finds where the two differ by more than chance, and Benjamini and Hochberg's correction (1995) keeps the
share of false alarms at 5 %. A labels file in another order than the outputs shows where two models agree by class
number and not by label. `check_distillation` is the same as a step of a build.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from edge_sdk.bundle.manifest import Distillation, Manifest
from edge_sdk.bundle.model_spec import Gates, ModelSpec, load_model_spec
from edge_sdk.core.errors import AccuracyGateError, DataError, ModelError, UsageError, raising
from edge_sdk.core.files import open_regular
from edge_sdk.tasks.spec import TRAITS, TaskSpec
from edge_sdk_tools.check.gate import CheckedModel
from edge_sdk_tools.datasets.dataset import Dataset
from edge_sdk_tools.evaluate.classification import said
from edge_sdk_tools.evaluate.evaluation import ENOUGH_IMAGES, Evaluation, constant_answer, summarise
from edge_sdk_tools.evaluate.metrics import TESTABLE, CalibrationError, Divergence, Pairs, WorstImage
from edge_sdk_tools.evaluate.model import from_checked, open_subject, open_subjects
from edge_sdk_tools.evaluate.participants import check_there, choose_images, pair_up, without_calibration
from edge_sdk_tools.evaluate.predictions import Observed, Participant, observe
from edge_sdk_tools.evaluate.statistics import Interval, difference_bounds
from edge_sdk_tools.evaluate.tasks import TASKS
from edge_sdk_tools.graph.profile import interleaved_latency_ms
from edge_sdk_tools.jobs.results import key_of
from edge_sdk_tools.jobs.runner import JobRunner, OnProgress, one_step, silent

FALSE_DISCOVERIES = 0.05


class ClassRow(msgspec.Struct, frozen=True):
    """How the two models compare on one class.

    Attributes:
        count: images or objects of it (without labels: that either model calls so).
        teacher, student: share of them that each gets right (without labels: that each calls so), 0-1.
        lost: how many more the teacher gets right; negative where the student does.
        p_value: of so uneven a split of the disagreements by chance; corrected for the number of classes that are
            tested. None where there are too few disagreements to tell anything.
    """

    label: str
    count: int
    teacher: float
    student: float
    lost: int
    p_value: float | None
    significant: bool


def mcnemar(teacher: NDArray[np.bool_], student: NDArray[np.bool_]) -> float:
    """Return the two-sided exact p-value, 0-1, of paired outcomes that disagree as likely one way as the other."""
    only_teacher, only_student = int((teacher & ~student).sum()), int((student & ~teacher).sum())
    split = only_teacher + only_student
    if not split:
        return 1.0
    from scipy.stats import binomtest  # takes half a second to import, which builds without a teacher need not

    return float(binomtest(only_teacher, split).pvalue)


def compared_classes(pairs: Pairs, labels: Sequence[str]) -> tuple[ClassRow, ...]:
    """Return a row for each class that occurs, those that differ most surely first."""
    found = np.unique(pairs.class_ids)
    masks = [pairs.class_ids == class_id for class_id in found]
    outcomes = [(pairs.teacher[mask], pairs.student[mask]) for mask in masks]
    rows = []
    for class_id, (teacher, student), p_value in zip(found, outcomes, _corrected(outcomes), strict=True):
        lost = int(teacher.sum()) - int(student.sum())
        significant = p_value is not None and p_value < FALSE_DISCOVERIES
        shares = float(teacher.mean()), float(student.mean())
        rows.append(ClassRow(labels[class_id], len(teacher), *shares, lost, p_value, significant))
    return tuple(sorted(rows, key=lambda row: (1.0 if row.p_value is None else row.p_value, -row.lost, row.label)))


def _corrected(pairs: Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]]) -> list[float | None]:
    """Return a p-value or None for each class; only the classes that can be tested count for the correction."""
    testable = [int((teacher != student).sum()) >= TESTABLE for teacher, student in pairs]
    from scipy.stats import false_discovery_control  # imported late, like binomtest

    raw = [mcnemar(*pair) for pair, can in zip(pairs, testable, strict=True) if can]
    corrected = iter(false_discovery_control(raw) if raw else [])
    return [float(next(corrected)) if can else None for can in testable]


TEMPERATURES = (1.0, 2.0, 4.0)  # softmax temperatures that distillation commonly uses; 1 is the plain probabilities
_SURELY_MORE = 0.1
_SEVERAL = 2  # classes


def check_label_order(observed: Observed) -> None:
    """Refuse a student and a teacher whose labels are in different orders; this works for classifiers only."""
    if not TRAITS[observed.task].is_of_whole_picture or len(observed.records) < ENOUGH_IMAGES:
        return
    student, teacher = said(observed, 0), said(observed, 1)
    real = (student < observed.classes) & (teacher < observed.classes)
    student, teacher = student[real], teacher[real]
    by_label, by_number = student == teacher, student == observed.participants[1].class_ids[teacher]
    # One class may agree by accident, for example where a model always gives the same answer.
    seen = len(np.unique(teacher[by_number & ~by_label]))
    if seen >= _SEVERAL and difference_bounds(by_number, by_label)[0] > _SURELY_MORE:
        subjects = [participant.subject for participant in observed.participants]
        first, second = (f"{s.name} ({s.spec.labels})" if isinstance(s.spec, ModelSpec) else s.name for s in subjects)
        raise ModelError(
            f"labels: {first} and {second} agree on {by_number.mean():.0%} of {len(by_label)} images by the number of "
            f"the class and on {by_label.mean():.0%} by its label, so the labels of one of them are in another order "
            "than its outputs; expected one label a line in the order in which that model was trained"
        )


_CLOSE_POINTS = 0.1  # this near to the limit, one digit would not show on which side the figure is
_ROUNDING = 1e-9  # tolerance for floating point: a figure at the limit passes


class Verdict(msgspec.Struct, frozen=True):
    """The verdict of the distillation gate.

    Attributes:
        value: the student's figure minus the teacher's, -1 to 1, or their agreement, 0-1; with its 95 % interval.
        limit: the least `value` that passes.
        within_noise: whether the interval of the difference contains zero, so that these images do not tell the two
            models apart. None where agreement was judged.
        inconclusive: whether the limit is inside the interval, or the images are too few for any interval.
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
    """Judge a student by its quality where the images have labels, else by its agreement with the teacher."""
    figure = evaluation.figure
    if figure.reference is not None and figure.difference is not None:
        allowed_points = gates.distill_max_drop_points
        found, limit = figure.difference, -allowed_points / 100
        points, low, high = (100 * x for x in (found.value, found.low, found.high))
        digits = 2 if abs(points + allowed_points) < _CLOSE_POINTS else 1
        line = (
            f"{figure.name} {figure.value.value:.1%}, the teacher's {figure.reference.value:.1%}: "
            f"{_signed(points, digits)} points [{_signed(low, digits)} to {_signed(high, digits)}], at most "
            f"{allowed_points:g} below allowed{'; within noise of its teacher' if found.contains_zero else ''}"
        )
    else:
        found, limit = figure.value, gates.distill_min_agreement
        line = f"{figure.name} {found.value:.1%} [{found.low:.1%} to {found.high:.1%}], at least {limit:.1%} expected"
    doubt = ""
    if found.low < limit < found.high:
        doubt = "; inconclusive: the limit lies inside the interval, more images would tell"
    elif evaluation.images < ENOUGH_IMAGES:
        doubt = f"; inconclusive: {evaluation.images} images tell little, {ENOUGH_IMAGES} or more would"
    return Verdict(
        passed=found.value >= limit - _ROUNDING,
        metric=figure.name,
        value=found.value,
        low=found.low,
        high=found.high,
        limit=limit,
        within_noise=found.contains_zero if found is figure.difference else None,
        inconclusive=bool(doubt),
        line=f"{line}{doubt}",
    )


def _signed(points: float, digits: int) -> str:
    """Write a difference in points with its sign, such as `+0.2` or `-19.4`; never write a minus before zero."""
    return f"{round(points, digits) + 0.0:+.{digits}f}"


_WORST = 10
_FAR_BELOW_POINTS = 10


class DistillReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a distillation check.

    `p_value` is McNemar's exact test over all labelled images or objects; None without labels and for class maps, which
    have no `calibration` either. `divergences` are for classifiers; `classes` begin with the most significant ones.
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
    on_progress: OnProgress = silent,
) -> DistillReport:
    """Compare a student with its teacher, each a model.toml or a bundle; `verdict` says whether the gate was passed.

    Teacher, images and limits are those of the student's model.toml by default. `temperature` is a further softmax
    temperature to compare at, `max_images` are evenly spread, `jobs` are threads, one for each core by default.
    An AccuracyGateError says that one model gives the same answer for every image, or that the teacher finds nothing.
    """
    check_there(data)
    with one_step(on_progress, "load"):
        spec = load_model_spec(student) if student.suffix == ".toml" else None
        section = spec.teacher if spec else None
        named = teacher or (Path(section.model) if section else None)
        if named is None:
            how = "give --teacher teacher.toml, or [teacher] in model.toml"
            raise UsageError(f"{student}: no teacher to compare with: {how}")
        subjects = open_subjects([student, named])
    participants = pair_up(subjects, section.labels if section else {})
    limits = {"distill_max_drop_points": max_drop_points, "distill_min_agreement": min_agreement}
    given = {key: value for key, value in limits.items() if value is not None}
    gates = msgspec.structs.replace(spec.gates if spec else Gates(), **given)
    folder = data or (Path(spec.data.evaluation) if spec and spec.data.evaluation else None)
    if folder is None:
        raise UsageError(f"{student}: no images to compare on: give --data, or [data] evaluation in model.toml")
    dataset, calibrated = choose_images(subjects, folder, max_images)
    temperatures = tuple(sorted({*TEMPERATURES, *([temperature] if temperature else [])}))
    return check_student(participants, dataset, gates, on_progress, temperatures, str(folder), calibrated, jobs)


def check_student(
    participants: Sequence[Participant],
    dataset: Dataset,
    gates: Gates,
    on_progress: OnProgress,
    temperatures: tuple[float, ...] = TEMPERATURES,
    data: str = "",
    calibrated: int = 0,
    jobs: int | None = None,
) -> DistillReport:
    """Compare two loaded models, the student first, and return the report with its verdict."""
    total = len(dataset)
    observed = observe(participants, dataset, lambda done: on_progress("compare with teacher", done, total), jobs)
    constant = [line for which in (0, 1) if (line := constant_answer(observed, which))]
    # If both models give one answer for all images, the images may all show the same; this is only a warning.
    if len(constant) == 1 and len(observed.records) >= ENOUGH_IMAGES:
        raise AccuracyGateError(constant[0])
    check_label_order(observed)
    evaluation = summarise(observed, data, calibrated, on_progress)
    warnings = (
        *filter(None, [evaluation.lost_class]),
        *evaluation.warnings,
        *_teacher_warnings(participants, evaluation),
    )
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
    mine, theirs = ((one.digest, one.labels, one.spec.input, one.spec.decoder) for one in (student, teacher))
    if mine == theirs:
        return (f"{student.name} and {teacher.name} are the very same model: a student is never worse than itself",)
    difference = evaluation.quality[0].difference if evaluation.quality else None
    if difference is None or 100 * difference.low < _FAR_BELOW_POINTS:
        return ()
    return (
        f"the teacher lies {100 * difference.value:.0f} points below its student: are the student's labels in the "
        "order of its outputs? Class ids of the data are read by them",
    )


class Distilled(msgspec.Struct, frozen=True):
    """A student that is good enough, and what its teacher would cost in its place.

    `teacher_quality` is the teacher's figure against labels, `teacher_mb` its size with all weights, MB of 1e6 bytes,
    `latency_ratio` its median latency over the student's, in one run here, one thread.
    """

    promise: Distillation
    teacher_quality: Interval | None
    teacher_file: Path
    teacher_mb: float
    latency_ratio: float


def check_distillation(
    spec: ModelSpec, checked: CheckedModel, dataset: Dataset, job_runner: JobRunner, on_progress: OnProgress
) -> Distilled:
    """Compare a checked model with the teacher that its model.toml names.

    An AccuracyGateError says that the student is not good enough, a ModelError that the two cannot be compared.
    """
    named = spec.teacher
    assert named is not None  # or nothing is compared
    student = from_checked(spec.name, spec, checked)
    teacher = open_subject(Path(named.model))
    if teacher.name == student.name:
        teacher.name = f"{teacher.name} ({named.model})"
    images = without_calibration([teacher], dataset)
    if not len(images):
        raise DataError(f"every evaluation image calibrated {teacher.name}, the teacher; give others with --evaluation")
    participants = pair_up([student, teacher], named.labels)
    models: list[object] = []
    for participant in participants:
        one = participant.subject
        models += [one.name, one.digest, one.labels, participant.class_ids]
        models += [getattr(one.spec, key) for key in TaskSpec.__struct_fields__]
    report = job_runner.once(
        lambda: check_student(participants, images, spec.gates, on_progress),
        key=key_of("distillation", models, spec.gates, images, *images.mask_contents()),
        result=DistillReport,
    )
    if not report.verdict.passed:
        raise AccuracyGateError(
            f"{student.name} is not its teacher's equal: {report.verdict.line}; `edge-sdk distill-check` shows "
            "where, gates.distill_max_drop_points and distill_min_agreement set the limit"
        )
    its = teacher.spec
    file = Path(named.model, its.variants[0].file) if isinstance(its, Manifest) else Path(its.model)
    with raising(ModelError, f"{file}: cannot be read any more"):
        open_regular(file).close()  # libraries would wait at a pipe that has taken its place
    tensors = [np.zeros(one.session.input_shape, one.session.input_dtype) for one in (teacher, student)]
    theirs_ms, own_ms = interleaved_latency_ms(
        [lambda: teacher.session.run(tensors[0]), lambda: student.session.run(tensors[1])],
        lambda done, total: on_progress("measure latency", done, total),
    )
    verdict, quality = report.verdict, report.evaluation.quality
    figure = report.evaluation.figure
    promise = Distillation(
        teacher=teacher.name,
        teacher_sha256=teacher.digest,
        metric=verdict.metric,
        student=figure.value.value,
        teacher_value=figure.reference.value if figure.reference else None,
        low=verdict.low,
        high=verdict.high,
        images=report.evaluation.images,
        limit=verdict.limit,
        within_noise=verdict.within_noise,
        line=verdict.line,
    )
    return Distilled(
        promise=promise,
        teacher_quality=quality[0].reference if quality else None,
        teacher_file=file,
        teacher_mb=(file.stat().st_size if file.suffix == ".ort" else onnx.load(file).ByteSize()) / 1e6,
        latency_ratio=theirs_ms / own_ms,
    )
