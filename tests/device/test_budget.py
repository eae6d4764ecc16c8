"""The drop rule, on a hand-moved clock."""

from __future__ import annotations

from edge_sdk.budget import Budget

MS = 1_000_000


def test_a_fresh_frame_runs_and_an_old_one_does_not() -> None:
    budget = Budget(100)
    assert budget.admits(captured_ns=0, now_ns=100 * MS)
    assert not budget.admits(captured_ns=0, now_ns=101 * MS)


def test_the_expected_duration_counts_against_the_budget() -> None:
    budget = Budget(100)
    for _ in range(64):
        budget.record(40 * MS)
    assert budget.expected_ns() == 40 * MS
    assert budget.admits(captured_ns=0, now_ns=60 * MS)
    assert not budget.admits(captured_ns=0, now_ns=61 * MS)


def test_the_estimate_is_the_90th_percentile_of_the_last_64() -> None:
    budget = Budget(100)
    for duration in range(1, 1001):
        budget.record(duration)
    last = sorted(range(1000 - 63, 1001))
    assert budget.expected_ns() == last[64 * 9 // 10]
    for _ in range(64):
        budget.record(5)
    assert budget.expected_ns() == 5


def test_one_late_probe_a_second_runs_so_that_recovery_is_seen() -> None:
    budget = Budget(10)
    budget.record(500 * MS)
    ran = [t for t in range(0, 5000, 10) if budget.admits(captured_ns=t * MS, now_ns=t * MS)]
    assert ran == [0, 1000, 2000, 3000, 4000]


def test_images_in_turn_are_never_dropped() -> None:
    budget = Budget(10, drops=False)
    budget.record(500 * MS)
    assert all(budget.admits(captured_ns=0, now_ns=t * MS) for t in range(0, 1000, 100))
    assert budget.is_late(0, 11 * MS)


def test_late_is_beyond_the_budget() -> None:
    budget = Budget(100)
    assert not budget.is_late(0, 100 * MS)
    assert budget.is_late(0, 100 * MS + 1)


def test_one_probe_that_makes_it_ends_a_slow_spell() -> None:
    budget = Budget(100)
    for _ in range(64):
        budget.record(150 * MS)
    assert budget.admits(0, 0)  # the first probe
    budget.record(150 * MS)
    assert not budget.admits(0, 500 * MS)
    assert budget.admits(1000 * MS, 1000 * MS)
    budget.record(20 * MS)
    assert budget.expected_ns() == 20 * MS
    assert budget.admits(1050 * MS, 1100 * MS)


def test_a_probe_that_would_have_made_it_only_with_a_younger_frame_does_not() -> None:
    budget = Budget(100)
    for _ in range(64):
        budget.record(150 * MS)
    budget.admits(0, 90 * MS)
    budget.record(20 * MS)
    assert budget.expected_ns() == 150 * MS


def test_a_lucky_probe_in_a_lasting_spell_lets_one_more_late_frame_through() -> None:
    budget = Budget(100)
    ran = []
    for t in range(0, 10_000, 50):
        if budget.admits(t * MS, t * MS):
            budget.record((20 if len(ran) % 2 else 150) * MS)
            ran.append(t)
    assert len(ran) <= 21  # two a second: the probe, and the one after it


def test_a_frame_from_the_future_has_no_time_to_spare_for_that() -> None:
    budget = Budget(100)
    assert budget.admits(captured_ns=5000 * MS, now_ns=0)
    for _ in range(64):
        budget.record(150 * MS)
    assert not budget.admits(captured_ns=5000 * MS, now_ns=10 * MS)
    assert not budget.is_late(captured_ns=5000 * MS, now_ns=10 * MS)


def test_what_runs_after_forgetting_is_not_judged_by_what_ran_before() -> None:
    budget = Budget(100)
    for _ in range(64):
        budget.record(150 * MS)
    budget.forget()
    assert budget.expected_ns() == 0
    for duration in range(100):
        budget.record(duration)
    assert budget.expected_ns() == 36 + 64 * 9 // 10
