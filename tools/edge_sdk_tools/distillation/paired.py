"""Paired outcomes, class by class: where a student and its teacher differ by more than chance.

Every pair is one image or one object that both were asked about: McNemar's exact test (1947) looks only at those where
one was right and the other was not; Benjamini and Hochberg's correction (1995) keeps the share of false alarms at 5 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk_tools.evaluate.tasks import Pairs

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
