"""BarChart: rows of a label, bars with a whisker, and a text. All widths are percent, so that it fits any screen."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from edge_sdk_tools.evaluate import Interval
from edge_sdk_tools.report.axis import Axis, Tick

Tone: TypeAlias = Literal["fp32", "int8", "other", "loss", "gain", "float"]
"""What a mark stands for; the style sheet gives it a colour in light and dark."""

ROW_PX = 28
_BAR_PX = 14


class Bar(msgspec.Struct, frozen=True):
    """One bar.

    Attributes:
        start, width: percent of the chart's width.
        tone: of its colour.
        y_px, height_px: within its row.
    """

    start: float
    width: float
    tone: Tone
    y_px: float = (ROW_PX - _BAR_PX) / 2
    height_px: float = _BAR_PX


class Whisker(msgspec.Struct, frozen=True):
    """An interval, from and to in percent of the chart's width."""

    low: float
    high: float


class Row(msgspec.Struct, frozen=True):
    """One row.

    Attributes:
        label: whose it is.
        detail: a few words on it; empty for none.
        value: the figures as text; None says "not measured".
        bars: none where nothing was measured.
        whisker: around the end of the bar.
    """

    label: str
    detail: str
    value: str | None
    bars: tuple[Bar, ...] = ()
    whisker: Whisker | None = None


class BarChart(msgspec.Struct, frozen=True):
    """Rows on one axis.

    Attributes:
        title: what it shows, for those who hear the page.
        unit: of the axis, in words.
        rows: at once visible.
        ticks: of the axis.
        zero: where the axis has its 0, in percent of the width.
        folded: further rows, shown on demand.
    """

    title: str
    unit: str
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    zero: float
    folded: tuple[Row, ...] = ()


def bar_between(axis: Axis, start: float, end: float, tone: Tone) -> Bar:
    """A bar from one value to another, whichever is larger."""
    low, high = sorted((axis.at(start), axis.at(end)))
    return Bar(low, round(high - low, 2), tone)


def whisker_over(axis: Axis, interval: Interval, base: float = 0.0) -> Whisker:
    """An interval on top of a base."""
    return Whisker(axis.at(base + interval.low), axis.at(base + interval.high))
