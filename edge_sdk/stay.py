"""Stay: what runs take on a rung that a stream stepped up to."""

from __future__ import annotations

from statistics import median_low


class Stay:
    """What runs take on a rung that was stepped up to: the best of its windows, since a load may come with any.

    Args:
        below: the variant that ran before; empty where nothing is to be measured.
        below_ns: its median run, in the quiet time.
    """

    def __init__(self, below: str = "", below_ns: int = 0) -> None:
        self._below, self._below_ns = below, below_ns
        self._best_ns: int | None = None

    def note(self, runs_ns: list[int]) -> None:
        """A window's runs."""
        if runs_ns:
            found_ns = median_low(runs_ns)
            self._best_ns = found_ns if self._best_ns is None else min(self._best_ns, found_ns)

    def over(self, variant: str) -> float | None:
        """A run here over one of the variant below; None where that is not the one, or nothing was measured."""
        if variant != self._below or not self._below_ns or self._best_ns is None:
            return None
        return self._best_ns / self._below_ns
