"""Search: what is tried after what, so that few candidates are enough.

Pure: a generator that asks for a candidate and is sent its measurement. Not the full product: threads on the promised
variant first, then other providers, then the other variants from the best downwards with the settings that served the
first, and spinning or parallel branches only where nothing gentler keeps the budget.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import TypeAlias

import msgspec

from edge_sdk.cores import Cores
from edge_sdk.quality import Rating
from edge_sdk.tuning.candidate import Candidate, Measurement
from edge_sdk.tuning.choice import Limits, choose

Steps: TypeAlias = Generator[Candidate, Measurement | None, None]
_Asking: TypeAlias = Generator[Candidate, Measurement | None, Measurement | None]

_HELPS = 0.95  # of the p50 with fewer threads; above it further threads only warm the board
_REACHABLE = 2.0  # times the budget: what lies further away no setting brings back


class Space(msgspec.Struct, frozen=True):
    """What there is to try.

    Attributes:
        promise: what runs without tuning.
        ratings: of the variants that may run, by name.
        threads: numbers of threads, ascending.
        chains: execution providers, each chain in order of preference.
    """

    promise: Candidate
    ratings: Mapping[str, Rating]
    threads: tuple[int, ...]
    chains: tuple[tuple[str, ...], ...]


def thread_counts(cores: Cores) -> tuple[int, ...]:
    """1, 2, 4, ... up to the cores that are for the model."""
    top = cores.for_model
    counts = {top}
    count = 1
    while count < top:
        counts.add(count)
        count *= 2
    return tuple(sorted(counts))


def chain_tails(providers: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """A chain of execution providers, and what is left of it when the first ones are passed over."""
    return tuple(providers[first:] for first in range(len(providers)))


class Search:
    """One search.

    Args:
        space: what there is to try.
        limits: what has to be kept.
    """

    def __init__(self, space: Space, limits: Limits) -> None:
        self._space, self._limits = space, limits
        self._known: dict[Candidate, Measurement | None] = {}

    def steps(self) -> Steps:
        """Ask for one candidate after the other; None is sent for one that could not be measured."""
        promise = self._space.promise
        yield from self._ask(promise)
        yield from self._more_threads(promise)
        for chain in self._space.chains:
            yield from self._ask(_replace(self._best_so_far(), providers=chain))
        yield from self._variants()
        yield from self._finish()

    def untried(self) -> tuple[str, ...]:
        """Variants that nobody looked at, with a higher figure than what would be chosen now; the best first."""
        found = [m for m in self._known.values() if m is not None]
        looked_at = {candidate.variant for candidate in self._known}
        least = choose(found, self._limits)[0].rating.rank if found else float("-inf")
        by_rank = sorted(self._space.ratings.items(), key=lambda item: item[1].rank, reverse=True)
        return tuple(name for name, rating in by_rank if name not in looked_at and rating.rank > least)

    def _ask(self, candidate: Candidate) -> _Asking:
        if candidate not in self._known:
            self._known[candidate] = yield candidate
        return self._known[candidate]

    def _more_threads(self, base: Candidate) -> Steps:
        """Upwards as long as it helps."""
        before: Measurement | None = None
        for threads in self._space.threads:
            now = yield from self._ask(_replace(base, intra_op_num_threads=threads))
            if before and now and now.p50_ms > before.p50_ms * _HELPS:
                return
            before = now

    def _variants(self) -> Steps:
        """From the highest quality down to the first that keeps the limits safely, and those that are as good as it.

        The others below it cannot be chosen.
        """
        space, settings = self._space, self._best_so_far()
        reached: Rating | None = None
        for variant, rating in sorted(space.ratings.items(), key=lambda item: item[1].rank, reverse=True):
            if reached is not None and not rating.is_as_good_as(reached):
                continue
            base = self._best_so_far() if variant == space.promise.variant else _replace(settings, variant=variant)
            yield from self._ask(base)
            if reached is None and not self._keeps(variant):
                yield from self._harder(variant, base)
            if reached is None and self._keeps(variant):
                reached = rating

    def _harder(self, variant: str, base: Candidate) -> Steps:
        """What may bring a variant back that just misses; the gentlest first, and no further than is needed."""
        for candidate in self._harder_ones(base):
            found = self._of(variant)
            if not found or min(m.p99_ms for m in found) > self._limits.budget_ms * _REACHABLE or self._keeps(variant):
                return
            yield from self._ask(candidate)

    def _harder_ones(self, base: Candidate) -> Iterator[Candidate]:
        others = [t for t in self._space.threads if t != base.intra_op_num_threads]
        for threads in others:
            yield _replace(base, intra_op_num_threads=threads)
        top = self._space.threads[-1]
        if top > 1:
            yield _replace(base, intra_op_num_threads=top, allow_spinning=True)
        # On one provider ONNX Runtime runs all nodes in turn, whatever it is told.
        if len(base.providers) > 1:
            yield _replace(base, intra_op_num_threads=top, inter_op_num_threads=2)

    def _finish(self) -> Steps:
        """Around the best: spinning where a limit says how much may burn, and no arena."""
        found = [m for m in self._known.values() if m is not None]
        if not found:
            return
        best = choose(found, self._limits)[0].candidate
        if self._limits.cpu_share is not None and best.intra_op_num_threads > 1:
            yield from self._ask(_replace(best, allow_spinning=True))
        yield from self._ask(_replace(best, arena=False))

    def _best_so_far(self) -> Candidate:
        """The settings that serve the promised variant best."""
        found = self._of(self._space.promise.variant)
        return choose(found, self._limits)[0].candidate if found else self._space.promise

    def _keeps(self, variant: str) -> bool:
        return any(self._limits.is_safe(m) for m in self._of(variant))

    def _of(self, variant: str) -> list[Measurement]:
        return [m for c, m in self._known.items() if c.variant == variant and m is not None]


def _replace(candidate: Candidate, **changes: object) -> Candidate:
    return msgspec.structs.replace(candidate, **changes)
