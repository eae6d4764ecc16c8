"""Scatter: the recipes that were tried, speed across and change of quality upwards."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edge_sdk_tools.ledger import Candidate
from edge_sdk_tools.report.axis import Axis, Tick, axis_over
from edge_sdk_tools.report.words import points, times

HEIGHT_PX = 340
_TOP_PX, _BOTTOM_PX = 28, 300
_LEFT, _RIGHT = 9.0, 95.0  # percent of the width; left of it stand the numbers
_TICKS = 6
_LEAST_RATIO = 0.1
_LEAST_POINTS = 1.0
_MARGIN = 0.08  # of each axis, so that no point lies on the edge


class Point(msgspec.Struct, frozen=True):
    """One recipe.

    Attributes:
        number: as in the table.
        x: percent of the width.
        y_px, top_px, bottom_px: its change, and the interval of it, from the top.
        state: chosen, held, or missed the gate.
        title: all of it, in words.
    """

    number: int
    x: float
    y_px: float
    top_px: float
    bottom_px: float
    state: str
    title: str


class Scatter(msgspec.Struct, frozen=True):
    """The chart.

    Attributes:
        points: the chosen one last, so that it lies on top.
        x_ticks: percent of the width.
        y_ticks: pixels from the top.
        gate_px: where the gate lies; None without one.
        left_out: recipes without a latency or a change.
    """

    points: tuple[Point, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    gate_px: float | None
    left_out: int


def scatter(candidates: Sequence[Candidate], least_change: float | None) -> Scatter | None:
    """Draw the recipes; None where not one has both figures.

    Args:
        candidates: numbered from 1 in this order.
        least_change: the gate, -1 to 0.
    """
    drawn = [(n, c) for n, c in enumerate(candidates, start=1) if c.change and c.latency_ratio is not None]
    if not drawn:
        return None
    gate = None if least_change is None else 100 * least_change
    reaches = [100 * edge for _, c in drawn if c.change for edge in (c.change.low, c.change.high)]
    across = _wider(axis_over([c.latency_ratio or 0.0 for _, c in drawn], least=_LEAST_RATIO, holds=None))
    upwards = _wider(axis_over([*reaches, *(() if gate is None else (gate,))], least=_LEAST_POINTS))
    placed = [_point(number, candidate, across, upwards) for number, candidate in drawn]
    return Scatter(
        tuple(sorted(placed, key=lambda point: point.state == "chosen")),
        tuple(Tick(_x(tick.at), tick.text) for tick in across.ticks(_TICKS, "{:g}x")),
        tuple(Tick(_y(tick.at), tick.text) for tick in upwards.ticks(_TICKS, "{:+g}")),
        None if gate is None else _y(upwards.at(gate)),
        len(candidates) - len(drawn),
    )


def _point(number: int, candidate: Candidate, across: Axis, upwards: Axis) -> Point:
    state = "chosen" if candidate.chosen else "held" if candidate.held else "missed"
    change = candidate.change
    y, top, bottom = (
        _y(upwards.at(100 * value)) for value in ((change.value, change.high, change.low) if change else (0, 0, 0))
    )
    words = f"{number}: {candidate.recipe}; {points(change)} points, {times(candidate.latency_ratio)}; {state}"
    return Point(number, _x(across.at(candidate.latency_ratio or 0.0)), y, top, bottom, state, words)


def _wider(axis: Axis) -> Axis:
    margin = _MARGIN * (axis.high - axis.low)
    return Axis(axis.low - margin, axis.high + margin)


def _x(along: float) -> float:
    """Percent of the axis as percent of the whole width."""
    return round(_LEFT + (_RIGHT - _LEFT) * along / 100, 2)


def _y(along: float) -> float:
    """Percent of the axis as pixels from the top."""
    return round(_BOTTOM_PX - (_BOTTOM_PX - _TOP_PX) * along / 100, 1)
