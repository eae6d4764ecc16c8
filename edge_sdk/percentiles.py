"""Percentiles of durations: what every latency is reported as."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds that 50, 95 and 99 % of the durations do not exceed."""

    p50_ms: float
    p95_ms: float
    p99_ms: float


def percentiles_of(durations_ns: NDArray[np.int64]) -> Percentiles | None:
    """Percentiles of int64 (N,) nanoseconds, rounded to microseconds; None of nothing."""
    if not len(durations_ns):
        return None
    last = len(durations_ns) - 1
    places = np.array([0.50, 0.95, 0.99]) * last
    # As np.percentile does it, which loads modules for 15 ms when it is first called: in the middle of a run.
    values = np.interp(places, np.arange(last + 1), np.sort(durations_ns))
    p50, p95, p99 = (round(float(value) / 1e6, 3) for value in values)
    return Percentiles(p50, p95, p99)
