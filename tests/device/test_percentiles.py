"""Percentiles: numpy's own, to the microsecond."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.percentiles import percentiles_of


@pytest.mark.parametrize("count", [1, 2, 3, 50, 4096])
def test_they_are_the_usual_ones(count: int) -> None:
    durations_ns = np.random.default_rng(count).integers(0, 10**9, count)
    found = percentiles_of(durations_ns)
    assert found is not None
    expected = np.percentile(durations_ns, [50, 95, 99]) / 1e6
    assert (found.p50_ms, found.p95_ms, found.p99_ms) == pytest.approx(expected, abs=0.00051)


def test_of_nothing_there_are_none() -> None:
    assert percentiles_of(np.empty(0, np.int64)) is None
