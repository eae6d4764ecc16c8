"""A figure with its interval, alone or beside a reference's, by paired bootstrap over the images.

A metric is a function of weights, how often each image counts: the same weights for two models make the comparison
paired, and weights of one give the plain figure. Resampling never shows what the images happen not to hold: of 20 right
answers in 20 every resampling has 20. So intervals of shares, and of differences of shares, are never narrower than
those computed from counts alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
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
        low, high: its 95 % interval, see `interval_of`; for shares never narrower than those of `shares`.
    """

    value: float
    low: float
    high: float

    @property
    def contains_zero(self) -> bool:
        """Whether what was measured may be noise."""
        return self.low <= 0 <= self.high

    def reaching(self, bounds: tuple[float, float]) -> Interval:
        """The same figure; its interval holds `bounds` too."""
        return Interval(self.value, min(self.low, bounds[0]), max(self.high, bounds[1]))


class Metric(msgspec.Struct, frozen=True, eq=False):
    """One named metric of one model on N images.

    Attributes:
        name: as reports have it.
        statistic: the metric as a function of weights.
        hits: bool (N,), when the metric is the share of images that are one of two things; None for others.
        bounds: least and most that it can be.
    """

    name: str
    statistic: Statistic
    hits: NDArray[np.bool_] | None = None
    bounds: tuple[float, float] = (0.0, 1.0)


def resample(images: int, rounds: int = RESAMPLES) -> Weights:
    """The images as they are, then `rounds` samples of as many images, drawn with replacement.

    Returns:
        float64 (1 + rounds, images), each row's sum is `images`; the first row is ones.
    """
    random = np.random.default_rng(_SEED)
    weights = np.ones((1 + rounds, images))
    for row in weights[1:]:  # row by row: a table of drawn indices would double the memory
        row[:] = np.bincount(random.integers(images, size=images), minlength=images)
    return weights


def share_metric(name: str, hits: NDArray[np.bool_]) -> Metric:
    """The share of images that are right, equal, or whatever `hits` says, bool (N,)."""
    return Metric(name, mean_of(hits.astype(np.float64)), hits)


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


def interval_of(draws: NDArray[np.float64], bounds: tuple[float, float] = (-math.inf, math.inf)) -> Interval:
    """A figure with its basic bootstrap interval: as far below it as the draws reach above, and the other way round.

    Plain percentiles would be wrong for average precision: an image that is drawn twice makes it larger, so that the
    draws lean upward from the figure as the figure itself does from what more images would give (Davison and Hinkley,
    Bootstrap Methods and their Application, 1997, section 5.2).

    Args:
        draws: float64 (1 + B,), a statistic of the weights of `resample`; what is no number there is left out.
        bounds: between which the figure lies whatever the images are.
    """
    value = float(draws[0])
    known = draws[1:][np.isfinite(draws[1:])]
    if not len(known):
        return Interval(value, value, value)
    high, low = 2 * value - np.percentile(known, _PERCENTILES)
    return Interval(value, max(min(float(low), value), bounds[0]), min(max(float(high), value), bounds[1]))


CONFIDENCE = 0.95
# Not scipy.stats, which takes as long to import as a small model to quantize; tests compare with it.
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_ADDED = 0.5  # to each of the four cells of a paired table (Agresti and Min, 2005)


def share_bounds(hits: NDArray[np.bool_]) -> tuple[float, float]:
    """Wilson's score interval (1927) of the share of `hits`.

    Args:
        hits: bool (N,), N at least 1.

    Returns:
        Low and high, 0-1.
    """
    count = len(hits)
    share = float(hits.sum()) / count
    scale = 1 + _Z**2 / count
    middle = (share + _Z**2 / (2 * count)) / scale
    reach = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2)) / scale
    return max(0.0, middle - reach), min(1.0, middle + reach)


def difference_bounds(hits: NDArray[np.bool_], reference: NDArray[np.bool_]) -> tuple[float, float]:
    """The adjusted Wald interval of share of `hits` less share of `reference`, on the same things.

    Agresti and Min, Simple improved confidence intervals for comparing matched proportions (2005): half an observation
    is added to each cell of the table of both outcomes.

    Args:
        hits: bool (N,).
        reference: bool (N,).

    Returns:
        Low and high, -1 to 1.
    """
    gained = int((hits & ~reference).sum()) + _ADDED
    lost = int((reference & ~hits).sum()) + _ADDED
    count = len(hits) + 4 * _ADDED
    middle = (gained - lost) / count
    reach = _Z * math.sqrt(gained + lost - (gained - lost) ** 2 / count) / count
    return max(-1.0, middle - reach), min(1.0, middle + reach)


class Figure(msgspec.Struct, frozen=True):
    """One figure of a model, with its confidence interval.

    Attributes:
        name: such as `top-1`, `mAP50-95`, `mIoU`, `top-1 agreement`.
        value: with its 95 % interval.
        reference: the same of the reference; None without labels or without a reference.
        difference: value less reference, its interval paired; None as before.
    """

    name: str
    value: Interval
    reference: Interval | None = None
    difference: Interval | None = None


def figure_of(metric: Metric, weights: Weights) -> Figure:
    """A figure that stands alone."""
    return Figure(metric.name, _alone(metric, metric.statistic(weights)))


def compare(metric: Metric, reference: Metric, weights: Weights) -> Figure:
    """A figure beside the reference's, and the difference: the difference is paired."""
    mine, theirs = metric.statistic(weights), reference.statistic(weights)
    bounds = metric.bounds[0] - reference.bounds[1], metric.bounds[1] - reference.bounds[0]
    difference = interval_of(mine - theirs, bounds)
    if metric.hits is not None and reference.hits is not None:
        difference = difference.reaching(difference_bounds(metric.hits, reference.hits))
    return Figure(metric.name, _alone(metric, mine), _alone(reference, theirs), difference)


def _alone(metric: Metric, draws: NDArray[np.float64]) -> Interval:
    interval = interval_of(draws, metric.bounds)
    return interval if metric.hits is None else interval.reaching(share_bounds(metric.hits))
