"""Figures: ratios of several rounds beside their limit, as a table for people and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One figure.

    Attributes:
        name: what over what.
        rounds: its value in every round.
        at_least, at_most: what it shall reach; None where nothing was promised.
        unit: behind the value; empty for a ratio.
    """

    name: str
    rounds: tuple[float, ...]
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.rounds)

    @property
    def is_reached(self) -> bool | None:
        """Whether the median keeps the limit; None where there is none."""
        if self.at_least is None and self.at_most is None:
            return None
        low, high = self.at_least, self.at_most
        return (low is None or self.median >= low) and (high is None or self.median <= high)

    @property
    def limit(self) -> str:
        """The limit for people."""
        if self.at_least is not None:
            return f">= {self.at_least:g}{self.unit}"
        return "" if self.at_most is None else f"<= {self.at_most:g}{self.unit}"


def markdown(figures: Sequence[Figure]) -> list[str]:
    """A table: median, smallest and largest round, limit, and whether it was reached."""
    lines = ["| figure | median | rounds | limit | |", "|---|---|---|---|---|"]
    for f in figures:
        verdict = {None: "", True: "reached", False: "**missed**"}[f.is_reached]
        spread = f"{min(f.rounds):.3g} to {max(f.rounds):.3g}"
        lines.append(f"| {f.name} | {f.median:.3g}{f.unit} | {spread} | {f.limit} | {verdict} |")
    return lines


def print_figures(figures: Sequence[Figure]) -> None:
    """The table on standard output."""
    print("\n".join(markdown(figures)))
