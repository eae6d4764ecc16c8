"""From the distribution of an activation to the range that its integers span.

Owns the ways: all values, all but a few, or the range whose integers keep most of the information.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from edge_sdk_tools.quantize.histogram import Histogram

Calibration: TypeAlias = Literal["percentile 99.999", "percentile 99.99", "percentile 99.9999", "min-max", "entropy"]
"""A way to choose ranges; docs/adr/0003 has what they cost, and why the first is the first."""

CALIBRATIONS: tuple[Calibration, ...] = get_args(Calibration)

_LEVELS = 255
_BINS = 2048
_SHARES = np.geomspace(1.0, 0.1, 64)  # of the whole range, that entropy tries
_TINY = 1e-12


def ranges_of(activations: Mapping[str, Histogram], calibration: Calibration) -> dict[str, tuple[float, float]]:
    """The range of every activation: low and high."""
    return {name: range_of(histogram, calibration) for name, histogram in activations.items()}


def range_of(histogram: Histogram, calibration: Calibration) -> tuple[float, float]:
    """The range of one activation."""
    if calibration == "min-max" or histogram.low == histogram.high:
        return histogram.low, histogram.high
    if calibration == "entropy":
        return _least_divergent(histogram)
    return histogram.spanned(float(calibration.removeprefix("percentile ")) / 100)


def _least_divergent(histogram: Histogram) -> tuple[float, float]:
    """The range whose 255 levels are nearest to the values by Kullback-Leibler divergence.

    After Migacz, 8-bit Inference with TensorRT (2017), for ranges that need not be symmetric: both ends are drawn in by
    the same share. What lies outside is counted at the end that it is clipped to.
    """
    low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)
    counts = histogram.linear(np.linspace(low, high, _BINS + 1))
    middles = (np.arange(_BINS) + 0.5) / _BINS * (high - low) + low
    costs = [_divergence(counts, middles, low * share, high * share) for share in _SHARES]
    share = _SHARES[int(np.argmin(costs))]
    return max(float(low * share), histogram.low), min(float(high * share), histogram.high)


def _divergence(counts: NDArray[np.float64], middles: NDArray[np.float64], low: float, high: float) -> float:
    inside = (middles >= low) & (middles <= high)
    if np.count_nonzero(inside) < 2:
        return np.inf
    first, last = int(inside.argmax()), len(inside) - 1 - int(inside[::-1].argmax())
    expected = counts[first : last + 1].copy()
    shown = expected > 0
    levels = ((middles[first : last + 1] - low) / (high - low) * (_LEVELS - 1)).round().astype(np.int64)
    mass = np.bincount(levels, weights=expected, minlength=_LEVELS)
    bins = np.bincount(levels, weights=shown, minlength=_LEVELS)
    got = np.where(shown, mass[levels] / np.maximum(bins[levels], 1), 0.0)
    expected[0] += counts[:first].sum()
    expected[-1] += counts[last + 1 :].sum()
    p, q = expected / expected.sum(), got / max(got.sum(), _TINY)
    where = p > 0
    return float((p[where] * np.log(p[where] / np.maximum(q[where], _TINY))).sum())
