"""Golden: the comparison sees every value, in outputs of any size, and keeps little memory for it."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from edge_sdk.golden import judged_rows, largest_difference, row_count
from edge_sdk.manifest import Golden

EXACT = Golden(file="golden.npz", count=1, absolute=0.0, relative=0.0)
LARGE = (1, 4, 50_000)  # more than is compared at once


@pytest.mark.parametrize("shape", [(1, 84, 100), (1, 10), (3,), (1, 1, 20, 30), (2, 5, 7), (1, 3, 4, 5), (1, 1)])
def test_rows_are_counted_as_they_are_judged(shape: tuple[int, ...]) -> None:
    output = np.zeros(shape, np.float32)
    assert row_count(output) == len(judged_rows(output))


@pytest.mark.parametrize("value", [0.5, -0.5, np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 65_535, 65_536, 199_999])
def test_one_wrong_value_anywhere_is_found(value: float, place: int) -> None:
    expected = np.zeros(LARGE, np.float32)
    got = expected.copy()
    got.reshape(-1)[place] = value
    assert largest_difference([expected], [expected.copy()], EXACT, []) == 0.0
    problem = largest_difference([got], [expected], EXACT, [])
    assert isinstance(problem, str)
    assert f"off by up to {abs(value):.3g} in 0.0% of its values" in problem


def test_what_is_allowed_is_measured() -> None:
    golden = Golden(file="golden.npz", count=1, absolute=0.01, relative=0.1)
    expected = np.full(LARGE, 2, np.float32)
    got = expected.copy()
    got[0, 3, -1] = 2.2
    assert largest_difference([got], [expected], golden, []) == pytest.approx(0.2, rel=1e-5)


def test_a_large_output_is_not_copied() -> None:
    expected = np.zeros((1, 84, 8400), np.float32)
    got = expected + np.float32(1e-9)
    golden = Golden(file="golden.npz", count=1, absolute=1e-6, relative=0.0)
    tracemalloc.start()
    try:
        assert largest_difference([got], [expected], golden, []) == pytest.approx(1e-9)
        assert tracemalloc.get_traced_memory()[1] < expected.nbytes
    finally:
        tracemalloc.stop()
