"""Candidates and measurements made up for tests."""

from __future__ import annotations

import msgspec

from edge_sdk.cores import Cores
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


def cores(usable: int) -> Cores:
    return Cores(logical=usable, physical=usable, allowed=usable, usable=usable)
