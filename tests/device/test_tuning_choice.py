"""Which of the measured candidates runs: the best quality that keeps the limits, never simply the smallest."""

from __future__ import annotations

import pytest

from edge_sdk.tuning.candidate import Measurement
from edge_sdk.tuning.choice import Limits, choose
from edge_sdk.tuning.tuned import Tuned
from tests.device.measured import CPU, candidate, measurement

FP32 = measurement(candidate("fp32"), p99_ms=80, cpu_share=0.9, quality=1.0)
INT8 = measurement(candidate("int8"), p99_ms=30, cpu_share=0.4, quality=0.96)
SMALL = measurement(candidate("int8.320x320"), p99_ms=15, cpu_share=0.2, quality=0.80)
UNKNOWN = measurement(candidate("odd"), p99_ms=5, cpu_share=0.1, quality=None)
ALL = [SMALL, INT8, UNKNOWN, FP32]


@pytest.mark.parametrize(
    ("limits", "expected", "reason"),
    [
        (Limits(100), FP32, "the highest quality of those that keep 100 ms"),
        (Limits(89), FP32, "the highest quality of those that keep 89 ms"),
        (Limits(88), INT8, "the highest quality of those that keep 88 ms"),  # a tenth is not to spare
        (Limits(29), SMALL, "the highest quality of those that keep 29 ms"),
        (Limits(10), UNKNOWN, "the highest quality of those that keep 10 ms"),
        (Limits(5), UNKNOWN, "the highest quality of those that keep 5 ms"),  # nothing has a tenth to spare
        (Limits(100, 0.5), INT8, "the highest quality of those that keep 100 ms and a CPU share of 0.5"),
        (Limits(100, 0.2), SMALL, "the highest quality of those that keep 100 ms and a CPU share of 0.2"),
        (Limits(4), UNKNOWN, "a budget of 4 ms cannot be kept here: the fastest of 4 that were tried takes 5 ms (p99)"),
        (
            Limits(100, 0.05),
            UNKNOWN,
            "a CPU share of 0.05 cannot be kept here: the least of 4 that were tried is 0.10",
        ),
    ],
)
@pytest.mark.parametrize("measured", [ALL, ALL[::-1]])
def test_the_highest_quality_that_keeps_the_limits_runs(
    measured: list[Measurement], limits: Limits, expected: Measurement, reason: str
) -> None:
    assert choose(measured, limits) == (expected, reason)


def test_where_only_a_slow_one_takes_little_cpu_the_budget_goes_first() -> None:
    lean_and_late = measurement(candidate("lean"), p99_ms=200, cpu_share=0.1)
    fast = [measurement(candidate(threads=t), p99_ms=20, cpu_share=share) for t, share in ((1, 0.6), (2, 0.8))]
    assert choose([lean_and_late, *fast], Limits(100, 0.5))[0] is fast[0]
    assert choose([lean_and_late], Limits(100, 0.5))[0] is lean_and_late


@pytest.mark.parametrize(
    ("p99_and_share", "expected"),
    [
        ([(20, 0.3), (30, 0.1)], 0),  # clearly faster
        ([(30, 0.3), (20, 0.9)], 1),
        ([(20, 0.9), (21, 0.3)], 1),  # as fast, and cooler
        ([(20, 0.30), (19, 0.31)], 0),  # as fast and as cool: the first
        ([(0.30, 0.05), (0.20, 0.05)], 0),  # a tenth of a millisecond says nothing
        ([(0.50, 0.05), (0.20, 0.05)], 1),
    ],
)
def test_of_one_quality_the_fastest_runs_and_noise_decides_nothing(
    p99_and_share: list[tuple[float, float]], expected: int
) -> None:
    measured = [
        measurement(candidate(threads=1 + i), p99_ms=p99, cpu_share=share)
        for i, (p99, share) in enumerate(p99_and_share)
    ]
    chosen, reason = choose(measured, Limits(50))
    assert measured.index(chosen) == expected
    assert reason == "the fastest that keeps 50 ms, with the least CPU where others are as fast"


@pytest.mark.parametrize(
    ("p99_ms", "p50_ms", "expected"),
    [(29, 6.2, 0), (31, 6.2, 1), (29, 6.4, 1)],
)
def test_one_slow_frame_among_fifty_decides_nothing(p99_ms: float, p50_ms: float, expected: int) -> None:
    measured = [
        measurement(candidate(), p99_ms=p99_ms, p50_ms=p50_ms),
        measurement(candidate(arena=False), p99_ms=20, p50_ms=6.0),
    ]
    assert measured.index(choose(measured, Limits(50))[0]) == expected


def test_what_keeps_nothing_is_still_chosen_by_speed() -> None:
    chosen, reason = choose([FP32], Limits(50))
    assert chosen is FP32
    assert reason == "a budget of 50 ms cannot be kept here: the fastest of the one that was tried takes 80 ms (p99)"


def test_where_nothing_keeps_the_budget_the_slowest_frames_decide_and_not_the_usual_ones() -> None:
    steady = measurement(candidate(threads=1), p99_ms=60, p50_ms=58)
    jumpy = measurement(candidate(threads=2), p99_ms=90, p50_ms=30)
    assert choose([jumpy, steady], Limits(50))[0] is steady


def test_a_variant_runs_as_it_was_measured_best_and_one_that_was_not_as_the_chosen_one() -> None:
    measured = [
        measurement(candidate("int8", threads=2), 30, quality=0.9),
        measurement(candidate("int8", threads=1), 10, quality=0.9),
        measurement(candidate("fp32", threads=4), 40, quality=1.0),
    ]
    tuned = Tuned.of(measured, candidate(threads=2), Limits(50), metric="agreement", providers=CPU, fps=30, seconds=1)
    assert tuned.for_variant("int8") == candidate("int8", threads=1)
    assert tuned.for_variant("fp32") == candidate("fp32", threads=4)
    assert tuned.for_variant("int8.320x320") == candidate("int8.320x320", threads=4)
