"""Paired bootstrap: how far a figure would move on other images of the same kind.

Owns the resampling and the intervals. A metric is a function of weights, how often each image counts: the same weights
for two models make the comparison paired, and weights of one give the plain figure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Weights: TypeAlias = NDArray[np.float64]
"""float64 (B, N): in each of B rows how often each of N images counts."""

Statistic: TypeAlias = Callable[[Weights], NDArray[np.float64]]
"""Weights -> float64 (B,), the metric of each row."""

RESAMPLES = 1000
"""Percentiles at 2.5 % want a thousand or more (Efron and Tibshirani, An Introduction to the Bootstrap, 1993)."""

_SEED = 20_240_229  # the same images give the same interval
_PERCENTILES = (2.5, 97.5)


class Interval(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval.

    Attributes:
        value: on the images as they are.
        low, high: 2.5 and 97.5 percentile of the resampled images.
    """

    value: float
    low: float
    high: float

    @property
    def contains_zero(self) -> bool:
        """Whether what was measured may be noise."""
        return self.low <= 0 <= self.high


class Metric(msgspec.Struct, frozen=True):
    """One named metric of one model on N images.

    Attributes:
        name: as reports have it.
        statistic: the metric as a function of weights.
    """

    name: str
    statistic: Statistic


def resample(images: int, rounds: int = RESAMPLES) -> Weights:
    """Draw `rounds` samples of `images` images with replacement.

    Returns:
        float64 (rounds, images), each row's sum is `images`.
    """
    random = np.random.default_rng(_SEED)
    return random.multinomial(images, np.full(images, 1 / images), size=rounds).astype(np.float64)


def interval_of(statistic: Statistic, weights: Weights) -> Interval:
    """The figure of `statistic` with its interval over `weights`."""
    [value] = statistic(np.ones((1, weights.shape[1])))
    return spread_of(statistic(weights), float(value))


def difference_of(statistic: Statistic, reference: Statistic, weights: Weights) -> Interval:
    """`statistic` less `reference`, with the interval of that difference: both see the same weights."""
    return interval_of(lambda w: statistic(w) - reference(w), weights)


def mean_of(values: NDArray[np.float64]) -> Statistic:
    """The mean of one number an image."""
    return lambda weights: weights @ values / weights.sum(axis=1)


def ratio_of(numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> Statistic:
    """Sum of the one over sum of the other; 0 where nothing is below."""

    def ratio(weights: Weights) -> NDArray[np.float64]:
        below = weights @ denominators
        result: NDArray[np.float64] = np.divide(weights @ numerators, below, out=np.zeros_like(below), where=below > 0)
        return result

    return ratio


def spread_of(values: NDArray[np.float64], value: float) -> Interval:
    """A figure with its interval, from what it was on resampled images; what is no number there is left out."""
    known = values[np.isfinite(values)]
    if not len(known):
        return Interval(value, value, value)
    low, high = np.percentile(known, _PERCENTILES)
    return Interval(value, float(low), float(high))
