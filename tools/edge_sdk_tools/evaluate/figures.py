"""One figure: a metric with its interval, alone or beside a reference's."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk_tools.evaluate.resampling import Interval, Metric, Weights, interval_of
from edge_sdk_tools.evaluate.shares import difference_bounds, share_bounds


class Figure(msgspec.Struct, frozen=True):
    """One figure of the model.

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
