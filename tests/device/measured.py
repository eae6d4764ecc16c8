"""Candidates, qualities and measurements made up for tests."""

from __future__ import annotations

import msgspec

from edge_sdk.cores import Cores
from edge_sdk.manifest import Difference, Quality
from edge_sdk.quality import Rating
from edge_sdk.tuning.candidate import Candidate, Measurement

CPU = ("CPUExecutionProvider",)


def candidate(variant: str = "int8", threads: int = 1, **changes: object) -> Candidate:
    made = Candidate(variant=variant, providers=CPU, intra_op_num_threads=threads)
    return msgspec.structs.replace(made, **changes)


def measurement(
    what: Candidate, p99_ms: float, cpu_share: float = 0.1, quality: float | None = 0.5, p50_ms: float | None = None
) -> Measurement:
    return Measurement(
        candidate=what, quality=quality, p50_ms=p50_ms or p99_ms, p99_ms=p99_ms, cpu_share=cpu_share, frames=50
    )


def rated(what: Candidate, rating: Rating, p99_ms: float, cpu_share: float = 0.1) -> Measurement:
    made = measurement(what, p99_ms, cpu_share, rating.value)
    return msgspec.structs.replace(made, like_reference=rating.like_reference)


def quality(
    value: float, low: float | None = None, high: float | None = None, *, images: int = 500, reference: str = "fp32"
) -> Quality:
    """Top-1 beside an FP32 that has .8, with the interval of their difference; without one where `low` is None."""
    difference = None if low is None or high is None else Difference(reference, round(value - 0.8, 6), low, high)
    return Quality("top-1", value, value - 0.02, value + 0.02, 0.8, images, difference)


def cores(usable: int) -> Cores:
    return Cores(logical=usable, physical=usable, allowed=usable, usable=usable)
