"""Estimate: what counted instructions may take on a board, with the error that such a figure has.

Owns the arithmetic. A board whose core or clock is unknown gets none.
"""

from __future__ import annotations

import msgspec

from edge_sdk.bundle.target import Target
from edge_sdk_tools.arm_cost.counts import Counts
from edge_sdk_tools.arm_cost.cycles import CYCLES, WORST_ERROR

_METHOD = "counted instructions x cycles per instruction / clock, one thread; estimated, not measured on a board"


class Estimate(msgspec.Struct, frozen=True):
    """One inference on one thread of a board that nobody measured.

    Attributes:
        core: in qemu's spelling.
        million_instructions: counted.
        cycles_per_instruction: of that core and mix of integer and floating-point multiplications.
        clock_mhz: the board's highest clock; a hot board has less.
        latency_ms: the estimate, in milliseconds.
        low_ms: the estimate divided by the worst error, in milliseconds.
        high_ms: times it.
        worst_error: the factor by which such an estimate was off at worst where a board's time was known.
        method: how it came about, in words.
    """

    core: str
    million_instructions: float
    cycles_per_instruction: float
    clock_mhz: int
    latency_ms: float
    low_ms: float
    high_ms: float
    worst_error: float
    method: str


def estimate(counts: Counts, target: Target) -> Estimate | None:
    """Estimate the time of one inference, without preparation and decoding.

    Args:
        counts: for the target's core.
        target: whose clock and core it runs on.

    Returns:
        None where the target's clock is not known, or its core was never compared with a board.

    Raises:
        ValueError: the counts are of another core.
    """
    if counts.cpu != target.cpu:
        raise ValueError(f"counted on {counts.cpu}, but {target.name} has {target.cpu or 'no core of its own'}")
    cycles = CYCLES.get(target.cpu)
    if cycles is None or not target.clock_mhz:
        return None
    each = cycles.mixed(counts.integer_share)
    latency_ms = counts.millions * each / target.clock_mhz * 1e3
    return Estimate(
        core=target.cpu,
        million_instructions=counts.millions,
        cycles_per_instruction=each,
        clock_mhz=target.clock_mhz,
        latency_ms=latency_ms,
        low_ms=latency_ms / WORST_ERROR,
        high_ms=latency_ms * WORST_ERROR,
        worst_error=WORST_ERROR,
        method=_METHOD,
    )
