"""Intervals: as wide as scipy has them, paired, around their figure, and the same each time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import bootstrap

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
    expected = bootstrap((RIGHT,), np.mean, method="percentile", n_resamples=9999, rng=1).confidence_interval
    assert found.value == pytest.approx(RIGHT.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_a_difference_is_paired() -> None:
    found = difference_of(RIGHT, OTHER)
    expected = bootstrap((RIGHT - OTHER,), np.mean, method="percentile", n_resamples=9999, rng=1).confidence_interval
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


def test_draws_that_lean_to_one_side_still_lie_around_their_figure() -> None:
    draws = np.concatenate([[0.5], np.linspace(0.55, 0.65, 1000)])
    found = interval_of(draws)
    assert found.low < found.value < found.high
    assert found.high - found.low == pytest.approx(0.095, abs=0.005)


def test_an_interval_stays_where_a_figure_can_be() -> None:
    draws = np.concatenate([[0.99], np.linspace(0.8, 1.0, 1000)])
    assert interval_of(draws).high <= 1.0


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
    metric = share_metric("top-1", np.arange(count) % 2 == 0)
    found = compare(metric, metric, resample(count)).difference
    assert found is not None
    assert found.value == 0
    assert found.low < -1 / (count + 2) < 1 / (count + 2) < found.high
