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
    p50, p95, p99 = (round(float(v) / 1e6, 3) for v in np.percentile(durations_ns, [50, 95, 99]))
    return Percentiles(p50, p95, p99)
