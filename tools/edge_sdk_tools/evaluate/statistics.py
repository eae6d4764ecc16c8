"""Compute figures with intervals, alone or compared with a reference, by paired half-samples of the images.

A metric is a function of weights, which say how often each image counts. The same weights for two models make the
comparison paired; weights of 1 give the plain figure. Resampling cannot show errors that the images happen not to hold:
of 20 right answers in 20 every resampling has 20. Intervals of shares, and of differences of shares, are therefore
never narrower than those computed from counts alone.
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
"""float64 (B, N): each of B rows says how often each of N images counts."""

Statistic: TypeAlias = Callable[[Weights], NDArray[np.float64]]
"""A function that takes weights and returns the metric of each row, float64 (B,)."""

RESAMPLES = 1000
"""Number of half-samples: by so many the standard deviation is known to 5 %."""

SHARE = "share"
"""Unit of figures that lie between 0 and 1 whatever the images are."""

_SEED = 20_240_229  # the same images give the same interval


class Interval(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval.

    Attributes:
        value: the figure on the images as they are.
        low, high: the ends of the interval (`interval_of`); for shares it is never narrower than `share_bounds`.
    """

    value: float
    low: float
    high: float

    @property
    def contains_zero(self) -> bool:
        """Whether the interval contains 0, so that a difference may be chance."""
        return self.low <= 0 <= self.high

    def on_other_images(self, bounds: tuple[float, float] = (-1.0, 1.0)) -> Interval:
        """Return the interval in which 95 of 100 measurements on as many other images lie, within `bounds`.

        Their noise is as large as that of this figure, and the variances of independent figures add.
        """
        low, high = (self.value + math.sqrt(2) * (end - self.value) for end in (self.low, self.high))
        return Interval(self.value, max(low, bounds[0]), min(high, bounds[1]))

    def reaching(self, bounds: tuple[float, float]) -> Interval:
        """Return the same figure with its interval widened to contain `bounds`."""
        return Interval(self.value, min(self.low, bounds[0]), max(self.high, bounds[1]))


class Metric(msgspec.Struct, frozen=True, eq=False):
    """One named metric of one model on N images.

    Attributes:
        hits: bool (N,), whether each image counts as right, where the metric is the share of such images; else None.
        bounds: the lowest and highest possible value.
        unit: `share` for 0-1, which people read in percent; else the unit's name.
        is_gated: whether a build refuses a loss of it.
        test: a statistic of the same property with less noise, by which a loss is told from chance; None if the metric
            itself is used.
    """

    name: str
    statistic: Statistic
    hits: NDArray[np.bool_] | None = None
    bounds: tuple[float, float] = (0.0, 1.0)
    unit: str = SHARE
    is_gated: bool = False
    test: Statistic | None = None


def resample(images: int, rounds: int = RESAMPLES) -> Weights:
    """Return weights for the images as they are, then for `rounds` half-samples: half of the images, each of them once.

    float64 (1 + rounds, images); the first row is ones. Every second half-sample of an odd number is the larger half. A
    mean varies over half-samples as much as over other sets of as many images, and so does a mean over classes that
    have one image each (Shao and Wu, A General Theory for Jackknife Variance Estimation, 1989). With replacement such a
    class would count once however often it was drawn: three quarters of that spread.
    """
    random = np.random.default_rng(_SEED)
    weights = np.zeros((1 + rounds, images))
    weights[0] = 1
    for number, row in enumerate(weights[1:]):
        row[random.permutation(images)[: max(1, (images + number % 2) // 2)]] = 1
    return weights


def share_metric(name: str, hits: NDArray[np.bool_], *, is_gated: bool = False) -> Metric:
    """Return the metric that is the share of images for which `hits`, bool (N,), is true."""
    return Metric(name, mean_of(hits.astype(np.float64)), hits, is_gated=is_gated)


def mean_of(values: NDArray[np.float64]) -> Statistic:
    """Return the statistic that is the mean of `values`, float64 (N,), one number for each image."""
    return lambda weights: weights @ values / weights.sum(axis=1)


def ratio_of(numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> Statistic:
    """Return the statistic that is the sum of `numerators` over that of `denominators`, float64 (N,) each.

    It is 0 where the sum of the denominators is 0.
    """
    return lambda weights: quotient(weights @ numerators, weights @ denominators, 0.0)


def quotient(above: NDArray[np.float64], below: NDArray[np.float64], default: float = math.nan) -> NDArray[np.float64]:
    """Return `above / below`, and `default` where `below` is not above 0; shapes broadcast as in NumPy."""
    out = np.full(np.broadcast(above, below).shape, default)
    return np.asarray(np.divide(above, below, out=out, where=below > 0), np.float64)


CONFIDENCE = 0.95
# scipy.stats is not used: importing it takes as long as quantizing a small model. Tests compare with it.
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_Z_POWER = NormalDist().inv_cdf(0.8)
_STUDENT = (_Z**3 + _Z) / 8, (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 384  # its quantile is _Z and these (Fisher, 1925)
_TINY = 1e-300
_ADDED = 0.5  # observations added to each of the four cells of a paired table (Agresti and Min, 2005)


def interval_of(
    draws: NDArray[np.float64], weights: Weights, bounds: tuple[float, float] = (-math.inf, math.inf)
) -> Interval:
    """Return a figure with the interval in which figures of as many images lie on average, within `bounds`.

    The draws are float64 (1 + B,), a statistic of the `weights` of `resample`; values that are not finite are left out.
    The interval reaches as many of their standard deviations to both sides as Student's distribution wants. A few
    images may make nearly all of a difference, which then has the degrees of freedom of those few (Satterthwaite,
    1946): how far each image moves the figure shows in the draws that have it.
    """
    value = float(draws[0])
    known = np.isfinite(draws)
    known[0] = False
    if not known.any():
        return Interval(value, value, value)
    apart = np.where(known, draws - draws[known].mean(), 0.0)
    moves = (apart @ weights) ** 2
    few = float(moves @ moves) / max(float(moves.sum()) ** 2, _TINY) - 1 / len(moves)  # 2 / degrees of freedom
    reach = (_Z + _STUDENT[0] * few + _STUDENT[1] * few**2) * math.sqrt(float(apart @ apart) / int(known.sum()))
    return Interval(value, max(value - reach, bounds[0]), min(value + reach, bounds[1]))


def share_bounds(hits: NDArray[np.bool_]) -> tuple[float, float]:
    """Return Wilson's score interval (1927), 0-1, of the share of `hits`, bool (N,), N at least 1."""
    count = len(hits)
    share = float(hits.sum()) / count
    scale = 1 + _Z**2 / count
    middle = (share + _Z**2 / (2 * count)) / scale
    reach = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2)) / scale
    return max(0.0, middle - reach), min(1.0, middle + reach)


def difference_bounds(hits: NDArray[np.bool_], reference: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the adjusted Wald interval, -1 to 1, of the share of `hits` minus that of `reference`, bool (N,) each.

    Half an observation is added to each cell of the table of both outcomes (Agresti and Min, Simple improved confidence
    intervals for comparing matched proportions, 2005).
    """
    gained = int((hits & ~reference).sum()) + _ADDED
    lost = int((reference & ~hits).sum()) + _ADDED
    count = len(hits) + 4 * _ADDED
    middle = (gained - lost) / count
    reach = _Z * math.sqrt(gained + lost - (gained - lost) ** 2 / count) / count
    return max(-1.0, middle - reach), min(1.0, middle + reach)


class Figure(msgspec.Struct, frozen=True):
    """One figure of a model; `name`, `unit` and `is_gated` are those of its `Metric`.

    Attributes:
        reference: the reference's figure; None without labels or without a reference.
        difference: value minus reference, with a paired interval; None where `reference` is None.
        test: the same difference by `Metric.test`; None where that is the metric itself.
    """

    name: str
    value: Interval
    reference: Interval | None = None
    difference: Interval | None = None
    unit: str = SHARE
    is_gated: bool = False
    test: Interval | None = None

    @property
    def drop(self) -> float:
        """The share of the reference's value that is lost: below 0 for a gain, 0 if the reference's value is 0."""
        if self.reference is None or self.reference.value <= 0:
            return 0.0
        return (self.reference.value - self.value.value) / self.reference.value

    @property
    def may_be_noise(self) -> bool:
        """Whether a loss may be chance: neither the figure's own interval nor that of its test lies below zero."""
        return all(found.high >= 0 for found in (self.difference, self.test) if found is not None)

    @property
    def detectable(self) -> float:
        """The smallest loss that these images show in 80 % of cases, by the narrower interval, at the 5 % level."""
        widths = [found.high - found.low for found in (self.difference, self.test) if found is not None]
        return min(widths, default=math.inf) / 2 * (1 + _Z_POWER / _Z)


def figure_of(metric: Metric, weights: Weights) -> Figure:
    """Return the figure of one model, without a reference."""
    value = _alone(metric, metric.statistic(weights), weights)
    return Figure(metric.name, value, unit=metric.unit, is_gated=metric.is_gated)


def compare(metric: Metric, reference: Metric, weights: Weights) -> Figure:
    """Return the figure of a model, that of the reference, and their difference with a paired interval."""
    mine, theirs = metric.statistic(weights), reference.statistic(weights)
    bounds = metric.bounds[0] - reference.bounds[1], metric.bounds[1] - reference.bounds[0]
    difference = interval_of(mine - theirs, weights, bounds)
    hits = metric.hits, reference.hits
    if metric.unit == SHARE and difference.low == difference.high:  # not one image tells the two apart
        hits = (np.zeros(weights.shape[1], np.bool_),) * 2
    if hits[0] is not None and hits[1] is not None:
        difference = difference.reaching(difference_bounds(hits[0], hits[1]))
    tests = metric.test, reference.test
    test = interval_of(tests[0](weights) - tests[1](weights), weights) if tests[0] and tests[1] else None
    alone = _alone(metric, mine, weights), _alone(reference, theirs, weights)
    return Figure(metric.name, *alone, difference, metric.unit, metric.is_gated, test)


def cross_validated(whole: Figure, one: Figure, other: Figure) -> Figure:
    """Return a figure whose difference is the mean of those on two halves of the images.

    Each half measures the model that the other chose. The figure's own value follows from the reference's in `whole`.
    """
    difference = _mean(one.difference, other.difference, whole.difference)
    assert difference is not None
    assert whole.reference is not None  # or nothing is compared
    shift = whole.reference.value + difference.value - whole.value.value
    ends = np.array(msgspec.structs.astuple(whole.value)) + shift
    own = Interval(*(ends.clip(0, 1) if whole.unit == SHARE else ends).tolist())
    test = _mean(one.test, other.test, whole.test)
    return msgspec.structs.replace(whole, value=own, difference=difference, test=test)


def _mean(one: Interval | None, other: Interval | None, ships: Interval | None) -> Interval | None:
    """Return the mean of figures of different images; the variances of independent figures add.

    What ships may be a third model: how far from the mean its figure on all images is counts as an error too, which
    `on_other_images` does not double.
    """
    if one is None or other is None or ships is None:
        return None
    value = (one.value + other.value) / 2
    apart = math.sqrt(2) * (ships.value - value)
    below = math.hypot(one.value - one.low, other.value - other.low, apart) / 2
    above = math.hypot(one.high - one.value, other.high - other.value, apart) / 2
    return Interval(value, value - below, value + above)


def _alone(metric: Metric, draws: NDArray[np.float64], weights: Weights) -> Interval:
    interval = interval_of(draws, weights, metric.bounds)
    return interval if metric.hits is None else interval.reaching(share_bounds(metric.hits))


def chance_of_gain(differences: NDArray[np.float64]) -> float:
    """Return the exact one-sided p-value of a gain, by Wilcoxon's signed-rank test (1945).

    The paired differences are float64 (N,); those of 0 are left out. The p-value is the probability of so high a rank
    sum of the gains, or a higher one, if gains and losses are equally likely.
    """
    sizes = np.abs(differences[differences != 0])
    ranks = 2 * (sizes[:, None] > sizes).sum(axis=1) + (sizes[:, None] == sizes).sum(axis=1) + 1  # twice the mean rank
    chances = np.ones(1)
    for rank in ranks:
        chances = (np.append(chances, np.zeros(rank)) + np.append(np.zeros(rank), chances)) / 2
    return float(chances[ranks[differences[differences != 0] > 0].sum() :].sum())
