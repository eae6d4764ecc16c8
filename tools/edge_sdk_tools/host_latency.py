"""Latency on this machine, side by side: what ratios are made of, and never a claim about the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

_ROUNDS = 15
_SECONDS = 6.0


def interleaved_latency_ms(
    calls: Sequence[Callable[[], object]], on_round: Callable[[int, int], None] = lambda _done, _total: None
) -> list[float]:
    """Median milliseconds of each call, measured in turn so that a noisy machine disturbs all of them alike.

    Args:
        calls: what to measure; each is called twice beforehand to warm up.
        on_round: called after each round with rounds done and rounds in all.

    Returns:
        One median a call. At most about six seconds are spent, and three rounds at least.
    """
    for call in calls:
        call()
        call()
    taken: list[list[float]] = [[] for _ in calls]
    deadline = time.perf_counter() + _SECONDS
    for done in range(1, _ROUNDS + 1):
        for call, times in zip(calls, taken, strict=True):
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e3)
        on_round(done, _ROUNDS)
        if done >= 3 and time.perf_counter() > deadline:
            break
    return [statistics.median(times) for times in taken]
