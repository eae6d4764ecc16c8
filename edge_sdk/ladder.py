"""Ladder: what a stream may fall back to, one rung at a time, and come back from.

Owns the order of the rungs. The first is what runs by choice; each one below it takes less of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edge_sdk.manifest import Manifest, Variant
from edge_sdk.quality import ratings

# Beyond 8 a stream is single pictures, and less load would not be felt. No rung has less than two thirds of the
# one above it: several streams that have no room for one step more stand one rung apart.
_EVERY = (1.5, 2, 3, 4, 6, 8)
_GAIN = 0.9  # of the time above it: a rung that saves less is noise


class Rung(msgspec.Struct, frozen=True):
    """One way to run.

    Attributes:
        variant: which of the bundle's models.
        every: of the frames every `every`-th runs, 1 and up; 1.5 are two of three.
        cost: of one run of it; only ratios between rungs mean anything.
    """

    variant: str
    every: float
    cost: float

    def __str__(self) -> str:
        if self.every == 1:
            return self.variant
        of, every = self.every.as_integer_ratio()
        return f"{self.variant}, " + (f"every {ordinal(of)} frame" if every == 1 else f"{every} of {of} frames")


def ladder_of(manifest: Manifest, *, fixed: bool = False) -> tuple[Rung, ...]:
    """The rungs of a bundle, from the variant that stands in front downwards.

    Below it come its faster variants, the slower first, but none that another one beats in both time and quality; at
    last every second, third and further frame of the fastest.

    Args:
        manifest: of the bundle, led by the variant that shall run.
        fixed: this variant and no other.
    """
    costs = _costs(manifest.variants)
    _, rated = ratings(manifest)
    first, *others = manifest.variants
    chosen = [first]
    for variant in sorted(() if fixed else others, key=lambda v: (-costs[v.name], -_pixels(v))):
        is_faster = costs[variant.name] <= _GAIN * costs[chosen[-1].name]
        is_beaten = any(
            costs[o.name] <= costs[variant.name] and rated[o.name].rank > rated[variant.name].rank
            for o in others
            if o is not variant
        )
        if is_faster and not is_beaten:
            chosen.append(variant)
    return tuple(with_steps([Rung(v.name, 1, costs[v.name]) for v in chosen]))


def with_steps(rungs: Sequence[Rung], steps: Sequence[float] = _EVERY) -> list[Rung]:
    """Variants, at least one, and below them two of three, every second, third and further frame of the last."""
    last = rungs[-1]
    return [*rungs, *(Rung(last.variant, every, last.cost) for every in steps)]


def _costs(variants: tuple[Variant, ...]) -> dict[str, float]:
    """Milliseconds of one run: the board's estimates where all have one, for boards have ratios of their own."""
    estimates = [v.estimate for v in variants]
    if all(e is not None for e in estimates):
        return {v.name: e.latency_ms for v, e in zip(variants, estimates, strict=True) if e is not None}
    return {v.name: v.host_latency_ms for v in variants}


def _pixels(variant: Variant) -> int:
    return variant.size_wh[0] * variant.size_wh[1]


def ordinal(number: int) -> str:
    """2nd, 3rd, 4th and so on, for numbers below 20."""
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
