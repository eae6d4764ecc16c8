"""Paired outcomes: the tests are scipy's, the bookkeeping is counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, false_discovery_control

from edge_sdk_tools.distill_check.paired import Pairs, class_rows, mcnemar


def _pairs(*classes: tuple[int, int, int, int]) -> Pairs:
    """Each class: how many both get right, only the teacher, only the student, none."""
    class_ids, teacher, student = [], [], []
    for class_id, counts in enumerate(classes):
        for (right_teacher, right_student), count in zip(((1, 1), (1, 0), (0, 1), (0, 0)), counts, strict=True):
            class_ids += [class_id] * count
            teacher += [right_teacher] * count
            student += [right_student] * count
    return Pairs(np.array(class_ids, np.int64), np.array(teacher, np.bool_), np.array(student, np.bool_))


@pytest.mark.parametrize(("only_teacher", "only_student"), [(0, 0), (1, 0), (8, 0), (9, 2), (2, 9), (5, 5)])
def test_mcnemar_looks_at_the_disagreements_alone(only_teacher: int, only_student: int) -> None:
    split = only_teacher + only_student
    expected = binomtest(only_teacher, split).pvalue if split else 1
    for agreeing in (0, 50):
        pairs = _pairs((agreeing, only_teacher, only_student, agreeing))
        assert mcnemar(pairs.teacher, pairs.student) == pytest.approx(expected)


def test_rows_are_corrected_for_their_number_and_the_surest_stands_first() -> None:
    counts = [(10, 4, 2, 2), (3, 14, 0, 1), (4, 6, 1, 0), (5, 0, 8, 0)]
    counts.append((9, 5, 0, 1))  # five disagreements can never be enough
    raw = [binomtest(t, t + s).pvalue for _, t, s, _ in counts if t + s > 5]
    rows = class_rows(_pairs(*counts), ["a", "b", "c", "d", "e"])
    corrected = dict(zip("abcd", false_discovery_control(raw), strict=True))
    assert {row.label: row.p_value for row in rows if row.label != "e"} == pytest.approx(corrected)
    assert [row.label for row in rows] == [*sorted("abcd", key=lambda label: corrected[label]), "e"]
    assert [row.label for row in rows if row.significant] == ["b", "d"]
    assert raw[3] < corrected["d"] < 0.05
    [b, *_, e] = rows
    assert (b.label, b.count, b.lost, b.teacher, b.student) == (
        "b",
        18,
        14,
        pytest.approx(17 / 18),
        pytest.approx(1 / 6),
    )
    assert e.p_value is None


def test_no_pairs_are_no_rows() -> None:
    assert class_rows(_pairs(), []) == ()
