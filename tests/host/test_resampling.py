"""Intervals: as wide as scipy has them, paired, around their figure, and the same each time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import bootstrap

from edge_sdk_tools.evaluate.average_precision import AveragePrecision, Boxes, Judged, LabelledBoxes, judge
from edge_sdk_tools.evaluate.figures import compare, figure_of
from edge_sdk_tools.evaluate.resampling import Interval, Metric, interval_of, mean_of, ratio_of, resample, share_metric

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
    expected = bootstrap((RIGHT,), np.mean, method="basic", n_resamples=9999, rng=1).confidence_interval
    assert found.value == pytest.approx(RIGHT.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.007)


def test_a_difference_is_paired() -> None:
    found = difference_of(RIGHT, OTHER)
    expected = bootstrap((RIGHT - OTHER,), np.mean, method="basic", n_resamples=9999, rng=1).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.006)
    alone = interval_of(mean_of(RIGHT)(WEIGHTS))
    assert found.high - found.low < alone.high - alone.low


def test_the_same_twice_differs_by_nothing() -> None:
    found = difference_of(RIGHT, RIGHT)
    assert (found.value, found.low, found.high) == (0, 0, 0)
    assert found.contains_zero


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
    for seed in range(200):
        sample = (np.random.default_rng(seed).random(120) < 0.6).astype(np.float64)
        found = interval_of(mean_of(sample)(resample(120, 400)))
        covered += found.low <= 0.6 <= found.high
    assert 180 <= covered <= 199


def test_draws_that_lean_upward_say_that_the_figure_does_too() -> None:
    found = interval_of(np.concatenate([[0.5], np.linspace(0.48, 0.60, 1001)]))
    assert (found.low, found.high) == pytest.approx((0.5 - 0.097, 0.5 + 0.017), abs=1e-9)


def test_an_interval_holds_its_figure_and_stays_where_a_figure_can_be() -> None:
    above = interval_of(np.concatenate([[0.02], np.linspace(0.05, 0.15, 1000)]), (0.0, 1.0))
    assert (above.low, above.high) == (0.0, 0.02)
    below = interval_of(np.concatenate([[0.98], np.linspace(0.85, 0.95, 1000)]), (0.0, 1.0))
    assert (below.low, below.high) == (0.98, 1.0)


def test_a_difference_stays_where_one_can_be() -> None:
    mine, reference = np.array([0.0, 0, 0, 0, 1]), np.array([1.0, 1, 1, 1, 0])
    for (first, second), edge in (((mine, reference), -1.0), ((reference, mine), 1.0)):
        found = compare(Metric("one", mean_of(first)), Metric("other", mean_of(second)), resample(5)).difference
        assert found is not None
        assert found.value == pytest.approx(0.6 * edge)
        assert edge in (found.low, found.high)
        assert -1 <= found.low < found.high <= 1


def test_a_difference_turned_round_is_its_mirror() -> None:
    one, other = difference_of(RIGHT, OTHER), difference_of(OTHER, RIGHT)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))


def test_the_intervals_of_average_precision_cover_what_more_images_would_give() -> None:
    population = _detections(np.random.default_rng(0), 1500)
    truth = AveragePrecision(population).mean()(np.ones((1, 1500)))[0]
    covered = 0
    for seed in range(60):
        draws = AveragePrecision(_detections(np.random.default_rng(100 + seed), 100)).mean()(resample(100, 200))
        found = interval_of(draws, (0.0, 1.0))
        covered += found.low <= truth <= found.high
    assert covered >= 52


def _detections(random: np.random.Generator, count: int) -> list[Judged]:
    """Images with some objects of two classes, most of which a detector finds, and what it finds besides."""
    found = []
    for _ in range(count):
        objects, strays = int(random.integers(1, 5)), 4
        corners = random.random((objects + strays, 2)) * 400
        boxes = np.concatenate([corners, corners + 60], axis=1)
        class_ids = random.integers(2, size=objects + strays)
        labelled = LabelledBoxes(boxes[:objects], class_ids[:objects], np.zeros(objects, np.bool_))
        seen = np.concatenate([random.random(objects) < 0.8, np.ones(strays, np.bool_)])
        sure = np.concatenate([random.beta(4, 2, objects), random.beta(2, 4, strays)])
        moved = boxes + random.normal(0, 4, boxes.shape)
        found.append(judge(Boxes(moved[seen], sure[seen], class_ids[seen]), labelled))
    return found


def test_draws_that_are_no_numbers_are_left_out() -> None:
    found = interval_of(np.array([0.5, np.nan, 0.4, 0.6, np.nan]))
    assert 0.4 <= found.low < 0.5 < found.high <= 0.6


@pytest.mark.parametrize("count", [1, 5, 20])
def test_a_few_right_answers_are_no_proof_that_all_will_be(count: int) -> None:
    hits = np.ones(count, np.bool_)
    found = figure_of(share_metric("top-1", hits), resample(count)).value
    assert found.value == found.high == 1
    assert found.low < 1 - 1 / (count + 4)


@pytest.mark.parametrize("count", [1, 5, 20])
def test_equal_answers_on_a_few_images_are_no_proof_that_two_models_are_equal(count: int) -> None:
    metric = share_metric("top-1", np.ones(count, np.bool_))
    figure = compare(metric, metric, resample(count))
    found = figure.difference
    assert found is not None
    assert figure.reference == figure.value
    assert figure.value.low < 1 - 1 / (count + 4)
    assert found.value == 0
    assert found.low < -1 / (count + 2) < 1 / (count + 2) < found.high
