"""Crew: who does the jobs. The three kinds differ in where, and in nothing that a caller sees."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Protocol, TypeAlias, TypeVar

from edge_sdk_tools.candidates.outcome import Outcome, outcome_of

T = TypeVar("T")
S = TypeVar("S")
Outcomes: TypeAlias = Generator[tuple[str, Outcome], None, None]
"""Outcomes under their keys, as they come; closing it cancels the rest."""


class Crew(Protocol):
    """Does jobs, and knows how many threads each may take."""

    @property
    def threads_per_job(self) -> int:
        """How many threads a job may take so that all that run at once share the cores."""
        ...

    @property
    def at_once(self) -> int:
        """How many jobs it does at once."""
        ...

    def perform(self, function: Callable[[T, S], object], items: Mapping[str, T], shared: S) -> Outcomes:
        """Do a job an item and yield the outcomes under their keys, as they come; closing it cancels the rest."""
        ...

    def close(self, *, interrupted: bool) -> None:
        """Let the workers go, at once where something went wrong."""
        ...


class Alone:
    """This process, one job after another.

    Args:
        cores: that each job has to itself.
    """

    def __init__(self, cores: int) -> None:
        self.threads_per_job = cores
        self.at_once = 1

    def perform(self, function: Callable[[T, S], object], items: Mapping[str, T], shared: S) -> Outcomes:
        """Do the jobs in the items' order."""
        for key, item in items.items():
            yield key, outcome_of(function, item, shared, key)

    def close(self, *, interrupted: bool) -> None:
        """Nothing to let go."""
