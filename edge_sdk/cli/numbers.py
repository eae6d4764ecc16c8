"""Numbers of a command line: their ranges, which for keys of a configuration file are that file's."""

from __future__ import annotations

import math
from collections.abc import Callable

import click

from edge_sdk.errors import UsageError

POSITIVE = click.FloatRange(min=0, max=1e9, min_open=True)
"""Seconds, milliseconds, shares; a billion seconds are 30 years."""


def number(_context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Refuse NaN, which is in every range."""
    if value is not None and math.isnan(value):
        raise UsageError(f"{option.opts[0]} is nan, expected a number above 0")
    return value


def as_in_a_file(key: str) -> Callable[[click.Context, click.Parameter, float | None], float | None]:
    """Refuse what the key of a stream in a configuration file may not be, in the same words."""

    def check(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
        if number(context, option, value) is not None:
            from edge_sdk.config import broken_by_flag  # it costs time, and most starts have no such flag

            if wrong := broken_by_flag(key, value):
                raise UsageError(wrong.replace(key, option.opts[0], 1))
        return value

    return check
