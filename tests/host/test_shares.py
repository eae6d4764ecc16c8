"""Intervals of shares: against published figures, and by how often they cover the truth."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest

from edge_sdk_tools.evaluate.shares import CONFIDENCE, difference_bounds, share_bounds


def _hits(right: int, wrong: int) -> NDArray[np.bool_]:
    return np.repeat([True, False], [right, wrong])


def test_a_share_is_wilsons() -> None:
    # Newcombe, Two-sided confidence intervals for the single proportion (1998), table I: method 3.
    assert share_bounds(_hits(81, 182)) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert share_bounds(_hits(0, 20)) == pytest.approx((0.0, 0.1611), abs=5e-5)


@pytest.mark.parametrize(("right", "wrong"), [(0, 1), (1, 0), (3, 4), (40, 0), (649, 1), (300, 350)])
def test_a_share_is_scipys_too(right: int, wrong: int) -> None:
    expected = binomtest(right, right + wrong).proportion_ci(CONFIDENCE, method="wilson")
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


@pytest.mark.parametrize(("count", "gained", "lost"), [(20, 0.02, 0.02), (60, 0.1, 0.03), (300, 0.01, 0.0)])
def test_a_paired_difference_covers_the_truth_as_often_as_it_says(count: int, gained: float, lost: float) -> None:
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        kind = random.choice(4, size=count, p=[0.5, gained, lost, 0.5 - gained - lost])
        low, high = difference_bounds((kind == 0) | (kind == 1), (kind == 0) | (kind == 2))
        covered += low <= gained - lost <= high
    assert covered >= 0.93 * 400
