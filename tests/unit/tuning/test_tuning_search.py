"""Which candidates are tried after which, and which of them runs: the best quality that keeps the limits."""

from collections.abc import Callable, Mapping

import pytest

from edge_sdk.bundle.manifest import Rating
from edge_sdk.tuning.candidates import Candidate, Limits, Measurement, Search, Tuned, choose, thread_counts
from tests.support.results import CPU, candidate, cores, measurement, plan, rated

GPU = ("CUDAExecutionProvider", *CPU)
Board = Callable[[Candidate], tuple[float, float]]
"""What a candidate takes on a board: milliseconds and CPU share."""


def _search(
    board: Board, limits: Limits, qualities: Mapping[str, float | Rating], *, usable: int = 4,
    promise: Candidate | None = None,
) -> tuple[list[str], Candidate]:  # fmt: skip
    promised = promise or candidate(next(iter(qualities)), threads=2)
    ratings = {name: q if isinstance(q, Rating) else Rating(q) for name, q in qualities.items()}
    steps = Search(plan(promised, limits, ratings=ratings, threads=thread_counts(cores(usable)))).steps()
    measured, asked = list[Measurement](), list[str]()
    wanted = next(steps)
    while True:
        assert str(wanted) not in asked
        asked.append(str(wanted))
        ms, share = board(wanted)
        measured.append(rated(wanted, ratings[wanted.variant], ms, share))
        try:
            wanted = steps.send(measured[-1])
        except StopIteration:
            return asked, choose(measured, limits)[0].candidate


def _scaling(base_ms: Mapping[str, float], helps: float = 0.8) -> Board:
    """Every doubling of threads takes `helps` as long; spinning a twentieth off, and a core."""

    def board(what: Candidate) -> tuple[float, float]:
        doublings = what.intra_op_num_threads.bit_length() - 1
        ms = base_ms[what.variant] * helps**doublings
        return (ms * 0.95, 1.5) if what.allow_spinning else (ms, ms / 100)

    return board


def test_threads_are_tried_upwards_as_long_as_they_help() -> None:
    asked, chosen = _search(_scaling({"int8": 10}), Limits(50), {"int8": 0.9}, usable=8)
    assert asked[:4] == ["int8, 2 threads", "int8, 1 thread", "int8, 4 threads", "int8, 7 threads"]
    assert chosen == candidate(threads=4)
    asked, chosen = _search(_scaling({"int8": 10}, helps=1.2), Limits(50), {"int8": 0.9}, usable=8)
    assert asked == ["int8, 2 threads", "int8, 1 thread", "int8, 1 thread, no arena"]
    assert [thread_counts(cores(usable)) for usable in (1, 2, 3)] == [(1,), (1, 2), (1, 2)]
    assert chosen == candidate()


def test_other_variants_are_tried_from_the_best_down_to_the_first_that_fits_with_the_settings_of_the_first() -> None:
    qualities = {"int8": 0.95, "int8.320x320": 0.8, "fp32": 1.0, "fp16": 0.99}
    times = {"int8": 20.0, "int8.320x320": 10.0, "fp32": 90.0, "fp16": 40.0}
    asked, chosen = _search(_scaling(times), Limits(50), qualities)
    assert chosen == candidate("fp16", threads=2)
    assert asked[3] == "fp32, 2 threads"
    assert asked.index("fp16, 2 threads") > asked.index("fp32, 2 threads")
    assert not [a for a in asked if "320" in a]  # it could not be chosen any more
    asked, chosen = _search(_scaling(times), Limits(12), qualities)
    assert chosen == candidate("int8.320x320", threads=2)


def test_those_that_are_as_good_within_noise_are_tried_and_no_others() -> None:
    as_good = {"fp32": Rating(0.80, like_reference=True), "int8": Rating(0.795, like_reference=True)}
    qualities = {"int8": as_good["int8"], "fp16": Rating(0.798), "small": Rating(0.7, like_reference=True), **as_good}
    times = {"fp32": 40.0, "int8": 20.0, "fp16": 30.0, "small": 5.0, "fp32.8x8": 10.0, "wide": 60.0}
    asked, chosen = _search(_scaling(times), Limits(50), qualities)
    assert {a.partition(",")[0] for a in asked} == {"int8", "fp32"}
    assert chosen == candidate("int8", threads=2)
    _, chosen = _search(_scaling(times), Limits(50), {"fp32": as_good["fp32"], "fp32.8x8": as_good["int8"]})
    assert chosen == candidate("fp32.8x8", threads=2)
    # Where one that is as good keeps the budget, nothing harder is tried for another.
    asked, chosen = _search(_scaling(times), Limits(50), {"fp32": as_good["fp32"], "wide": as_good["int8"]})
    assert [a for a in asked if a.startswith("wide")] == ["wide, 2 threads"]
    assert chosen == candidate("fp32", threads=2)


def test_one_that_just_misses_gets_more_threads_then_spinning_and_one_far_away_gets_nothing() -> None:
    qualities = {"int8": 0.9, "fp32": 1.0}

    def one_thread_is_best_for_int8(what: Candidate) -> tuple[float, float]:
        if what.variant == "int8":
            return 5.0 * what.intra_op_num_threads, 0.1
        return _scaling({"fp32": 60.0})(what)

    asked, chosen = _search(one_thread_is_best_for_int8, Limits(54), qualities, promise=candidate(threads=1))
    assert asked[2:5] == ["fp32, 1 thread", "fp32, 2 threads", "fp32, 2 threads, no arena"]
    assert chosen == candidate("fp32", threads=2)
    asked, chosen = _search(one_thread_is_best_for_int8, Limits(51), qualities, promise=candidate(threads=1))
    assert chosen == candidate("fp32", threads=3, allow_spinning=True)
    asked, _ = _search(one_thread_is_best_for_int8, Limits(29), qualities, promise=candidate(threads=1))
    assert [a for a in asked if a.startswith("fp32")] == ["fp32, 1 thread"]


def test_branches_at_once_are_the_last_resort_of_several_providers_and_nothing_burns_in_vain() -> None:
    asked, _ = _search(_scaling({"int8": 60}), Limits(35), {"int8": 0.9}, promise=candidate(threads=2, providers=GPU))
    assert asked.index("int8, 3 threads, 2 branches at once, CUDA") > asked.index("int8, 3 threads, spinning, CUDA")
    for base_ms in (60, 10):
        asked, _ = _search(_scaling({"int8": base_ms}), Limits(35), {"int8": 0.9})
        assert not [a for a in asked if "branches" in a]
    assert not [a for a in asked if "spinning" in a]


def test_spinning_is_tried_where_a_limit_says_how_much_may_burn() -> None:
    asked, chosen = _search(_scaling({"int8": 10}), Limits(50, cpu_share=1.0), {"int8": 0.9}, usable=2)
    assert "int8, 2 threads, spinning" in asked
    assert chosen == candidate(threads=2)  # a core and a half are too much
    _, chosen = _search(_scaling({"int8": 10}, helps=0.6), Limits(50, cpu_share=2.0), {"int8": 0.9}, usable=2)
    assert chosen == candidate(threads=2)  # a twentieth is not worth a core


def test_providers_are_tried_each_chain_and_what_is_left_of_it() -> None:
    def board(what: Candidate) -> tuple[float, float]:
        return (30.0 if what.providers == GPU else 10.0), 0.1

    asked, chosen = _search(board, Limits(50), {"int8": 0.9}, usable=1, promise=candidate(providers=GPU))
    assert asked[:2] == ["int8, 1 thread, CUDA", "int8, 1 thread"]
    assert chosen == candidate()


# Which of the measured candidates runs.

FP32 = measurement(candidate("fp32"), p99_ms=80, cpu_share=0.9, quality=1.0)
INT8 = measurement(candidate("int8"), p99_ms=30, cpu_share=0.4, quality=0.96)
SMALL = measurement(candidate("int8.320x320"), p99_ms=15, cpu_share=0.2, quality=0.80)
UNKNOWN = measurement(candidate("odd"), p99_ms=5, cpu_share=0.1, quality=None)
ALL = [SMALL, INT8, UNKNOWN, FP32]


@pytest.mark.parametrize(
    ("limits", "expected", "reason"),
    [
        (Limits(89), FP32, "the highest quality of those that keep 89 ms"),
        (Limits(88), INT8, "the highest quality of those that keep 88 ms"),  # a tenth is not to spare
        (Limits(29), SMALL, "the highest quality of those that keep 29 ms"),
        (Limits(5), UNKNOWN, "the highest quality of those that keep 5 ms"),  # nothing has a tenth to spare
        (Limits(100, 0.5), INT8, "the highest quality of those that keep 100 ms and a CPU share of 0.5"),
        (Limits(4), UNKNOWN, "a budget of 4 ms cannot be kept here: the fastest of 4 that were tried takes 5 ms (p99)"),
        (Limits(9, 0.05), UNKNOWN, "a CPU share of 0.05 cannot be kept here: the least of 4 that were tried is 0.10"),
    ],
)
def test_the_highest_quality_that_keeps_the_limits_runs(limits: Limits, expected: Measurement, reason: str) -> None:
    for measured in (ALL, ALL[::-1]):
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
        ([(20, 0.9), (21, 0.3)], 1),  # as fast, and cooler
        ([(20, 0.30), (19, 0.31)], 0),  # as fast and as cool: the first
        ([(0.30, 0.05), (0.20, 0.05)], 0),  # a tenth of a millisecond says nothing
    ],
)
def test_of_one_quality_the_fastest_runs(p99_and_share: list[tuple[float, float]], expected: int) -> None:
    measured = [measurement(candidate(threads=n), *costs) for n, costs in enumerate(p99_and_share, 1)]
    chosen, reason = choose(measured, Limits(50))
    assert measured.index(chosen) == expected
    assert reason == "the fastest that keeps 50 ms, with the least CPU where others are as fast"


@pytest.mark.parametrize(("p99_ms", "p50_ms", "expected"), [(29, 6.2, 0), (31, 6.2, 1), (29, 6.4, 1)])
def test_one_slow_frame_among_fifty_decides_nothing(p99_ms: float, p50_ms: float, expected: int) -> None:
    other = measurement(candidate(arena=False), p99_ms=20, p50_ms=6.0)
    measured = [measurement(candidate(), p99_ms=p99_ms, p50_ms=p50_ms), other]
    assert measured.index(choose(measured, Limits(50))[0]) == expected


def test_a_variant_runs_as_it_was_measured_best_and_one_that_was_not_as_the_chosen_one() -> None:
    measured = [
        measurement(candidate("int8", threads=2), 30, quality=0.9),
        measurement(candidate("int8", threads=1), 10, quality=0.9),
        measurement(candidate("fp32", threads=4), 40, quality=1.0),
    ]
    tuned = Tuned.of(plan(candidate(threads=2)), measured, seconds=1)
    assert tuned.for_variant("int8") == candidate("int8", threads=1)
    assert tuned.for_variant("fp32") == candidate("fp32", threads=4)
    assert tuned.for_variant("int8.320x320") == candidate("int8.320x320", threads=4)
