"""Axis: where a number lies along a chart, in percent of its width, and which round numbers are written there."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

_STEPS = (1, 2, 2.5, 5, 10)


class Tick(msgspec.Struct, frozen=True):
    """A number on an axis: where, in percent of the axis, and as text."""

    at: float
    text: str


class Axis(msgspec.Struct, frozen=True):
    """A stretch of numbers, of a length above 0.

    Attributes:
        low, high: its ends, in the unit of what is drawn; low is below high.
    """

    low: float
    high: float

    def at(self, value: float) -> float:
        """Where a value lies, 0-100; values beyond an end lie on it."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 2)

    def ticks(self, most: int, form: str = "{:g}") -> tuple[Tick, ...]:
        """At most `most` round numbers between the ends, with their texts by a format string."""
        step = _round_step((self.high - self.low) / max(most - 1, 1))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        numbers = [round(index * step, 12) + 0.0 for index in range(first, last + 1)]
        return tuple(
            Tick(self.at(number), form.format(number) if number else form.format(0).lstrip("+"))
            for number in numbers[:most]
        )


def axis_over(values: Iterable[float], *, least: float, holds: float | None = 0.0) -> Axis:
    """An axis over finite values.

    Args:
        values: any number of them.
        least: its least length, so that one value, or equal ones, have an axis too.
        holds: a value that must lie on it.
    """
    known = [*values, *(() if holds is None else (holds,))] or [0.0]
    low, high = min(known), max(known)
    missing = least - (high - low)
    if missing <= 0:
        return Axis(low, high)
    if holds is not None and holds in (low, high):  # grow away from what must lie on it, not beyond it
        return Axis(low, high + missing) if holds == low else Axis(low - missing, high)
    return Axis(low - missing / 2, high + missing / 2)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5 and 5, times a power of ten, that is no smaller than `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))
