"""One figure: a metric with its interval, alone or beside a reference's."""

from __future__ import annotations

import msgspec

from edge_sdk_tools.evaluate.resampling import Interval, Metric, Weights, difference_of, interval_of

_AFFORDED = 2_000_000_000  # numbers that one metric may touch for its interval: some ten seconds
_FEWEST = 100


class Figure(msgspec.Struct, frozen=True):
    """One figure of the model.

    Attributes:
        name: such as `top-1`, `mAP50-95`, `mIoU`, `top-1 agreement`.
        value: with its 95 % interval over resampled images.
        reference: the same of the reference; None without labels or without a reference.
        difference: value less reference, its interval from the same resamplings; None as before.
    """

    name: str
    value: Interval
    reference: Interval | None = None
    difference: Interval | None = None


def figure_of(metric: Metric, weights: Weights) -> Figure:
    """A figure that stands alone."""
    return Figure(metric.name, interval_of(metric.statistic, _afforded(metric, weights)))


def compare(metric: Metric, reference: Metric, weights: Weights) -> Figure:
    """A figure beside the reference's, and the difference: all three from the same resamplings."""
    weights = _afforded(metric, weights)
    return Figure(
        metric.name,
        interval_of(metric.statistic, weights),
        interval_of(reference.statistic, weights),
        difference_of(metric.statistic, reference.statistic, weights),
    )


def _afforded(metric: Metric, weights: Weights) -> Weights:
    """Fewer resamplings of what takes long; a hundred are the least of which a percentile can be taken."""
    return weights[: max(_FEWEST, _AFFORDED // max(1, metric.cost))]
