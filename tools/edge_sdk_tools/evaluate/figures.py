"""One figure: a metric with its interval, alone or beside a reference's."""

from __future__ import annotations

import msgspec

from edge_sdk_tools.evaluate.resampling import Interval, Metric, Weights, difference_of, interval_of


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
    return Figure(metric.name, interval_of(metric.statistic, weights))


def compare(metric: Metric, reference: Metric, weights: Weights) -> Figure:
    """A figure beside the reference's, and the difference: all three from the same resamplings."""
    return Figure(
        metric.name,
        interval_of(metric.statistic, weights),
        interval_of(reference.statistic, weights),
        difference_of(metric.statistic, reference.statistic, weights),
    )
