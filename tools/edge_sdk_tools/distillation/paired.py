"""What a classifier's student took over of its teacher's probabilities, beyond the likeliest class.

Owns the divergence at several temperatures and the calibration error. A detector's calibration error is that of its
detections' confidences.

What counts as a pair: for each task, with labels and without, the things on which both models were right or wrong.

With labels: images by their class, labelled objects by whether they were found. Without: what either model says, by
whether each said it.

Paired outcomes, class by class: where a student and its teacher differ by more than chance.

Owns the tests. Every pair is one image or one object that both were asked about: McNemar's exact test (1947) looks only
at those where one was right and the other was not; Benjamini and Hochberg's correction (1995) keeps the share of false
alarms among all classes at 5 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk_tools.datasets.dataset import BoxTruth
from edge_sdk_tools.evaluate.classification import calibration_error, divergences
from edge_sdk_tools.evaluate.evaluation import (
    class_places,
    class_rows,
    found_boxes,
    judged_boxes,
    match,
    said,
    true_classes,
)
from edge_sdk_tools.evaluate.predictions import Observed

TEMPERATURES = (1.0, 2.0, 4.0)
"""Softmax temperatures that distillation commonly uses; 1 is the plain probabilities."""


class Divergence(msgspec.Struct, frozen=True):
    """Teacher to student at one temperature.

    Attributes:
        temperature: of both softmaxes.
        nats: mean Kullback-Leibler divergence.
        loss: `nats` times the temperature squared, the distillation loss of Hinton et al. (2015), in which the
            gradients of all temperatures weigh alike.
    """

    temperature: float
    nats: float
    loss: float


class CalibrationError(msgspec.Struct, frozen=True):
    """How far confidence and share of right answers lie apart, 0-1 (15 bins).

    Attributes:
        student: against the labels; without labels against what the teacher says.
        teacher: against the labels; None without labels.
    """

    student: float
    teacher: float | None


def divergences_at(observed: Observed, temperatures: tuple[float, ...] = TEMPERATURES) -> tuple[Divergence, ...]:
    """One a temperature, for classifiers; none for other tasks."""
    if observed.task != "classification":
        return ()
    student, teacher = class_rows(observed, 0), class_rows(observed, 1)
    found = []
    for temperature in temperatures:
        nats = float(divergences(teacher, student, temperature).mean())
        found.append(Divergence(temperature, nats, nats * temperature**2))
    return tuple(found)


def calibration_errors(observed: Observed) -> CalibrationError | None:
    """Return the calibration errors of both models; None for class maps."""
    labelled = observed.dataset.truths is not None
    if observed.task == "classification":
        truth = true_classes(observed) if labelled else said(observed, 1)
        return CalibrationError(_of_rows(observed, 0, truth), _of_rows(observed, 1, truth) if labelled else None)
    if observed.task == "detection":
        if labelled:
            return CalibrationError(_of_boxes(observed, 0), _of_boxes(observed, 1))
        return CalibrationError(_of_pairs(observed), None)
    return None


def _of_rows(observed: Observed, which: int, truth: NDArray[np.int64]) -> float:
    return calibration_error(observed.probabilities(which).max(axis=1), said(observed, which) == truth)


def _of_boxes(observed: Observed, which: int) -> float:
    judged = judged_boxes(observed, which, confident=True)
    counted = [~j.ignored[:, 0] for j in judged]
    confidences = np.concatenate([j.confidences[c] for j, c in zip(judged, counted, strict=True)])
    return calibration_error(confidences, np.concatenate([j.right[c, 0] for j, c in zip(judged, counted, strict=True)]))


def _of_pairs(observed: Observed) -> float:
    pairs = list(zip(found_boxes(observed, 0), found_boxes(observed, 1), strict=True))
    right = [np.isin(np.arange(len(mine.confidences)), [i for i, _ in match(mine, theirs)]) for mine, theirs in pairs]
    return calibration_error(np.concatenate([mine.confidences for mine, _ in pairs]), np.concatenate(right))


FALSE_DISCOVERIES = 0.05

TESTABLE = 6
"""Of fewer disagreements even the most uneven split has p above 5 %: 2 / 2^5. Tarone (1990) leaves such tests out."""


class ClassRow(msgspec.Struct, frozen=True):
    """How the two models compare on one class.

    Attributes:
        label: its name.
        count: images or objects of it (without labels: that either model calls so).
        teacher, student: share of them that each gets right (without labels: that each calls so), 0-1.
        lost: how many more the teacher gets right; negative where the student does.
        p_value: of so uneven a split of the disagreements by chance; corrected for the number of classes that are
            tested. None where there are too few disagreements to tell anything.
        significant: p_value is below 5 %.
    """

    label: str
    count: int
    teacher: float
    student: float
    lost: int
    p_value: float | None
    significant: bool


class Pairs(msgspec.Struct, frozen=True, eq=False):
    """Outcomes of both models on the same things.

    Attributes:
        class_ids: int64 (N,), the class that each is counted for.
        teacher, student: bool (N,), who was right.
    """

    class_ids: NDArray[np.int64]
    teacher: NDArray[np.bool_]
    student: NDArray[np.bool_]


def mcnemar(teacher: NDArray[np.bool_], student: NDArray[np.bool_]) -> float:
    """Two-sided exact p-value, 0-1, that the disagreements of paired outcomes are as likely one way as the other."""
    only_teacher, only_student = int((teacher & ~student).sum()), int((student & ~teacher).sum())
    split = only_teacher + only_student
    if not split:
        return 1.0
    from scipy.stats import binomtest  # takes half a second to import, which builds without a teacher need not

    return float(binomtest(only_teacher, split).pvalue)


def compared_classes(pairs: Pairs, labels: Sequence[str]) -> tuple[ClassRow, ...]:
    """One row a class that occurs, those that differ most surely first."""
    found = np.unique(pairs.class_ids)
    if not len(found):
        return ()
    masks = [pairs.class_ids == class_id for class_id in found]
    p_values = _corrected([(pairs.teacher[mask], pairs.student[mask]) for mask in masks])
    rows = [
        _row(labels[class_id], pairs.teacher[mask], pairs.student[mask], p)
        for class_id, mask, p in zip(found, masks, p_values, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (1.0 if row.p_value is None else row.p_value, -row.lost, row.label)))


def _corrected(pairs: Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]]) -> list[float | None]:
    """One p-value a class, or None; only the classes that can be tested count for the correction."""
    testable = [int((teacher != student).sum()) >= TESTABLE for teacher, student in pairs]
    from scipy.stats import false_discovery_control  # as above

    raw = [mcnemar(*pair) for pair, can in zip(pairs, testable, strict=True) if can]
    corrected = iter(false_discovery_control(raw) if raw else [])
    return [float(next(corrected)) if can else None for can in testable]


def _row(label: str, teacher: NDArray[np.bool_], student: NDArray[np.bool_], p_value: float | None) -> ClassRow:
    lost = int(teacher.sum()) - int(student.sum())
    significant = p_value is not None and p_value < FALSE_DISCOVERIES
    return ClassRow(label, len(teacher), float(teacher.mean()), float(student.mean()), lost, p_value, significant)


def pairs_of(observed: Observed) -> Pairs | None:
    """Paired outcomes of the student (first) and its teacher; None for class maps, whose pixels hang together."""
    labelled = observed.dataset.truths is not None
    if observed.task == "classification":
        return _labelled_images(observed) if labelled else _answers(observed)
    if observed.task == "detection":
        return _labelled_objects(observed) if labelled else _found_objects(observed)
    return None


def _labelled_images(observed: Observed) -> Pairs:
    student, teacher = (class_places(observed, which) == 0 for which in (0, 1))
    return Pairs(true_classes(observed), teacher, student)


def _answers(observed: Observed) -> Pairs:
    student, teacher = said(observed, 0), said(observed, 1)
    said_by_one = teacher[student != teacher], student[student != teacher]
    # An image on which they differ counts for both classes: for the one only the teacher said, and the other.
    class_ids = np.concatenate([teacher, said_by_one[1]])
    by_teacher = np.concatenate([np.ones(len(teacher), np.bool_), np.zeros(len(said_by_one[1]), np.bool_)])
    by_student = np.concatenate([student == teacher, np.ones(len(said_by_one[1]), np.bool_)])
    return Pairs(class_ids, by_teacher, by_student)


def _labelled_objects(observed: Observed) -> Pairs:
    found = [_found(observed, which) for which in (0, 1)]
    class_ids = [t.class_ids[~t.crowd] for t in observed.dataset.truths or () if isinstance(t, BoxTruth)]
    return Pairs(np.concatenate(class_ids), found[1], found[0])


def _found(observed: Observed, which: int) -> NDArray[np.bool_]:
    """Whether each labelled object was found at IoU .5 by what the model's own threshold lets through."""
    judged = judged_boxes(observed, which, confident=True)
    truths = [t for t in observed.dataset.truths or () if isinstance(t, BoxTruth)]
    return np.concatenate([j.found[~t.crowd, 0] for j, t in zip(judged, truths, strict=True)])


def _found_objects(observed: Observed) -> Pairs:
    class_ids: list[int] = []
    teacher: list[bool] = []
    student: list[bool] = []
    for mine, theirs in zip(found_boxes(observed, 0), found_boxes(observed, 1), strict=True):
        matched = match(mine, theirs)
        both = {i for i, _ in matched}
        class_ids += [int(c) for c in theirs.class_ids]
        teacher += [True] * len(theirs.class_ids)
        seen = {j for _, j in matched}
        student += [j in seen for j in range(len(theirs.class_ids))]
        alone = [i for i in range(len(mine.class_ids)) if i not in both]
        class_ids += [int(mine.class_ids[i]) for i in alone]
        teacher += [False] * len(alone)
        student += [True] * len(alone)
    return Pairs(np.array(class_ids, np.int64), np.array(teacher, np.bool_), np.array(student, np.bool_))
