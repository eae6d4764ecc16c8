"""Intervals of figures: as wide as scipy has them, paired, and as often about the truth as they say."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_sdk_tools.distillation.gate import compared_classes, mcnemar
from edge_sdk_tools.evaluate.metrics import Pairs
from edge_sdk_tools.evaluate.statistics import (
    CONFIDENCE,
    Interval,
    Metric,
    compare,
    difference_bounds,
    figure_of,
    interval_of,
    mean_of,
    ratio_of,
    resample,
    share_bounds,
    share_metric,
)
from tests.support.absent import Lazy

stats = Lazy("scipy.stats")
RANDOM = np.random.default_rng(5)
RIGHT = (RANDOM.random(300) < 0.7).astype(np.float64)
OTHER = np.where(RANDOM.random(300) < 0.9, RIGHT, 1 - RIGHT)
WEIGHTS = resample(300)


def difference_of(values: NDArray[np.float64], reference: NDArray[np.float64]) -> Interval:
    found = compare(Metric("one", mean_of(values)), Metric("one", mean_of(reference)), WEIGHTS).difference
    assert found is not None
    return found


def test_the_images_as_they_are_stand_before_their_resamplings() -> None:
    assert WEIGHTS.shape == (1001, 300)
    assert (WEIGHTS[0] == 1).all()
    assert (WEIGHTS.sum(axis=1) == 300).all()
    assert WEIGHTS[1:].var() == pytest.approx(1, abs=0.02)  # of a multinomial with as many draws as cells
    assert np.array_equal(WEIGHTS, resample(300))


def test_the_interval_is_scipys() -> None:
    found = interval_of(mean_of(RIGHT)(WEIGHTS))
    expected = stats.bootstrap((RIGHT,), np.mean, method="basic", n_resamples=9999, rng=1).confidence_interval
    assert found.value == pytest.approx(RIGHT.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.007)


def test_a_difference_is_paired() -> None:
    found = difference_of(RIGHT, OTHER)
    expected = stats.bootstrap((RIGHT - OTHER,), np.mean, method="basic", n_resamples=9999, rng=1).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.006)
    alone = interval_of(mean_of(RIGHT)(WEIGHTS))
    assert found.high - found.low < alone.high - alone.low


@pytest.mark.parametrize(("lost", "noise"), [(0, True), (2, True), (20, False), (-20, False)])
def test_noise_is_a_difference_whose_interval_holds_zero(lost: int, noise: bool) -> None:
    other = RIGHT.copy()
    other[np.flatnonzero((lost > 0) == RIGHT)[: abs(lost)]] = lost < 0
    found = difference_of(other, RIGHT)
    assert found.value == pytest.approx(-lost / 300)
    assert found.contains_zero is noise


def test_a_ratio_of_sums() -> None:
    ratio = ratio_of(np.array([1.0, 0.0, 3.0]), np.array([2.0, 0.0, 4.0]))
    assert ratio(np.array([[1.0, 1, 1], [0, 3, 0], [3, 0, 0]])) == pytest.approx([4 / 6, 0, 0.5])


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(100):
        sample = (np.random.default_rng(seed).random(120) < 0.6).astype(np.float64)
        found = interval_of(mean_of(sample)(resample(120, 400)))
        covered += found.low <= 0.6 <= found.high
    assert 88 <= covered <= 99


def test_an_interval_holds_its_figure_and_stays_where_a_figure_can_be() -> None:
    above = interval_of(np.concatenate([[0.02], np.linspace(0.05, 0.15, 1000)]), (0.0, 1.0))
    assert (above.low, above.high) == (0.0, 0.02)
    below = interval_of(np.concatenate([[0.98], np.linspace(0.85, 0.95, 1000)]), (0.0, 1.0))
    assert (below.low, below.high) == (0.98, 1.0)


def test_a_difference_stays_where_one_can_be() -> None:
    mine, reference = np.array([0.0, 0, 0, 0, 1]), np.array([1.0, 1, 1, 1, 0])
    for (first, second), edge in (((mine, reference), -1.0), ((reference, mine), 1.0)):
        found = compare(Metric("one", mean_of(first)), Metric("other", mean_of(second)), resample(5)).difference
        assert found.value == pytest.approx(0.6 * edge)
        assert edge in (found.low, found.high)
        assert -1 <= found.low < found.high <= 1


def test_draws_that_are_no_numbers_are_left_out() -> None:
    found = interval_of(np.array([0.5, np.nan, 0.4, 0.6, np.nan]))
    assert 0.4 <= found.low < 0.5 < found.high <= 0.6


@pytest.mark.parametrize("count", [1, 20])
def test_a_few_right_or_equal_answers_are_no_proof_that_all_will_be(count: int) -> None:
    metric = share_metric("top-1", np.ones(count, np.bool_))
    figure = compare(metric, metric, resample(count))
    found = figure.difference
    assert figure.reference == figure.value == figure_of(metric, resample(count)).value
    assert figure.value.value == figure.value.high == 1
    assert figure.value.low < 1 - 1 / (count + 4)
    assert found.value == 0
    assert found.low < -1 / (count + 2) < 1 / (count + 2) < found.high


def _hits(right: int, wrong: int) -> NDArray[np.bool_]:
    return np.repeat([True, False], [right, wrong])


def test_a_share_is_wilsons_and_scipys() -> None:
    # Newcombe, Two-sided confidence intervals for the single proportion (1998), table I: method 3.
    assert share_bounds(_hits(81, 182)) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert share_bounds(_hits(0, 20)) == pytest.approx((0.0, 0.1611), abs=5e-5)
    for right, wrong in ((0, 1), (3, 4), (40, 0), (649, 1)):
        expected = stats.binomtest(right, right + wrong).proportion_ci(CONFIDENCE, method="wilson")
        assert share_bounds(_hits(right, wrong)) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_paired_difference_is_agrestis_and_mins() -> None:
    both, gained, lost, neither = 794, 150, 86, 570  # the survey of Agresti's books: approval, asked twice
    first = np.repeat([True, True, False, False], [both, gained, lost, neither])
    second = np.repeat([True, False, True, False], [both, gained, lost, neither])
    low, high = difference_bounds(first, second)
    assert (low, high) == pytest.approx((0.0211, 0.0588), abs=5e-4)
    assert difference_bounds(second, first) == pytest.approx((-high, -low))


def test_a_paired_difference_on_few_images_is_worked_out_by_hand() -> None:
    first = np.repeat([True, True, False, False], [5, 9, 1, 5])
    second = np.repeat([True, False, True, False], [5, 9, 1, 5])
    # Half a case in each cell: 9.5 and 1.5 of 22; 8 / 22 -+ 1.959964 * sqrt(11 - 64 / 22) / 22.
    assert difference_bounds(first, second) == pytest.approx((0.110226, 0.617047), abs=1e-5)


def _pairs(*classes: tuple[int, int, int, int]) -> Pairs:
    """Each class: how many both get right, only the teacher, only the student, none."""
    class_ids, teacher, student = [], [], []
    for class_id, counts in enumerate(classes):
        for (right_teacher, right_student), count in zip(((1, 1), (1, 0), (0, 1), (0, 0)), counts, strict=True):
            class_ids += [class_id] * count
            teacher += [right_teacher] * count
            student += [right_student] * count
    return Pairs(np.array(class_ids, np.int64), np.array(teacher, np.bool_), np.array(student, np.bool_))


def test_mcnemar_looks_at_the_disagreements_alone() -> None:
    for agreeing, (only_teacher, only_student) in product((0, 50), ((0, 0), (1, 0), (9, 2), (2, 9), (5, 5))):
        split = only_teacher + only_student
        expected = stats.binomtest(only_teacher, split).pvalue if split else 1
        pairs = _pairs((agreeing, only_teacher, only_student, agreeing))
        assert mcnemar(pairs.teacher, pairs.student) == pytest.approx(expected)


def test_rows_are_corrected_for_their_number_and_the_surest_stands_first() -> None:
    counts = [(10, 4, 2, 2), (3, 14, 0, 1), (4, 6, 1, 0), (5, 0, 8, 0)]
    counts.append((9, 5, 0, 1))  # five disagreements can never be enough
    raw = [stats.binomtest(t, t + s).pvalue for _, t, s, _ in counts if t + s > 5]
    rows = compared_classes(_pairs(*counts), ["a", "b", "c", "d", "e"])
    corrected = dict(zip("abcd", stats.false_discovery_control(raw), strict=True))
    assert {row.label: row.p_value for row in rows if row.label != "e"} == pytest.approx(corrected)
    assert [row.label for row in rows] == [*sorted("abcd", key=lambda label: corrected[label]), "e"]
    assert [row.label for row in rows if row.significant] == ["b", "d"]
    assert raw[3] < corrected["d"] < 0.05
    [b, *_, e] = rows
    assert (b.label, b.count, b.lost) == ("b", 18, 14)
    assert (b.teacher, b.student) == pytest.approx((17 / 18, 1 / 6))
    assert e.p_value is None
    assert compared_classes(_pairs(), []) == ()
