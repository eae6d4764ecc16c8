"""Intervals: as wide as scipy has them, paired, and the same each time."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import bootstrap

from edge_sdk_tools.evaluate.resampling import difference_of, interval_of, mean_of, ratio_of, resample

RANDOM = np.random.default_rng(5)
RIGHT = (RANDOM.random(300) < 0.7).astype(np.float64)
OTHER = np.where(RANDOM.random(300) < 0.9, RIGHT, 1 - RIGHT)
WEIGHTS = resample(300)


def test_every_resampling_has_as_many_images() -> None:
    assert WEIGHTS.shape == (1000, 300)
    assert (WEIGHTS.sum(axis=1) == 300).all()
    assert np.array_equal(WEIGHTS, resample(300))


def test_the_interval_is_scipys() -> None:
    found = interval_of(mean_of(RIGHT), WEIGHTS)
    expected = bootstrap((RIGHT,), np.mean, method="percentile", n_resamples=9999, rng=1).confidence_interval
    assert found.value == pytest.approx(RIGHT.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_a_difference_is_paired() -> None:
    found = difference_of(mean_of(RIGHT), mean_of(OTHER), WEIGHTS)
    expected = bootstrap((RIGHT - OTHER,), np.mean, method="percentile", n_resamples=9999, rng=1).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.006)
    alone = interval_of(mean_of(RIGHT), WEIGHTS)
    assert found.high - found.low < alone.high - alone.low


def test_the_same_twice_differs_by_nothing() -> None:
    found = difference_of(mean_of(RIGHT), mean_of(RIGHT), WEIGHTS)
    assert (found.value, found.low, found.high) == (0, 0, 0)
    assert found.contains_zero


@pytest.mark.parametrize(("lost", "noise"), [(0, True), (2, True), (20, False), (-20, False)])
def test_noise_is_a_difference_whose_interval_holds_zero(lost: int, noise: bool) -> None:
    other = RIGHT.copy()
    other[np.flatnonzero((lost > 0) == RIGHT)[: abs(lost)]] = lost < 0
    found = difference_of(mean_of(other), mean_of(RIGHT), WEIGHTS)
    assert found.value == pytest.approx(-lost / 300)
    assert found.contains_zero is noise


def test_a_ratio_of_sums() -> None:
    ratio = ratio_of(np.array([1.0, 0.0, 3.0]), np.array([2.0, 0.0, 4.0]))
    assert ratio(np.array([[1.0, 1, 1], [0, 3, 0], [3, 0, 0]])) == pytest.approx([4 / 6, 0, 0.5])


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(200):
        sample = (np.random.default_rng(seed).random(120) < 0.6).astype(np.float64)
        found = interval_of(mean_of(sample), resample(120, 400))
        covered += found.low <= 0.6 <= found.high
    assert 180 <= covered <= 199
