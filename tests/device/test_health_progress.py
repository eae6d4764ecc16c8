"""When the watchdog is told that the process works."""

from __future__ import annotations

import threading

from edge_sdk.health.progress import Progress


def test_without_a_pipeline_the_interval_alone_counts() -> None:
    progress = Progress(15)
    assert [now for now in range(46) if progress.is_due(now)] == [0, 15, 30, 45]


def test_one_of_two_pipelines_that_hangs_is_enough_and_one_that_comes_back_too() -> None:
    progress = Progress(10)
    gate, yard = progress.begin(), progress.begin()
    assert progress.is_due(0)
    told = []
    for now in range(1, 100):
        gate.after_step()
        if not 25 <= now < 60:
            yard.after_step()
        if progress.is_due(now):
            told.append(now)
    assert told == [10, 20, 30, 60, 70, 80, 90]  # between 20 and 30 both had moved


def test_a_machine_that_was_paused_is_no_hang() -> None:
    progress = Progress(10)
    gate = progress.begin()
    assert progress.is_due(0)
    gate.after_step()
    assert progress.is_due(10)
    assert not progress.is_due(10_000)  # nobody moved in all that time, and nobody could
    gate.after_step()
    assert progress.is_due(10_000.2)


def test_a_pipeline_that_is_over_or_begins_is_not_waited_for() -> None:
    progress = Progress(10)
    with progress.begin():
        assert progress.is_due(0)
        assert not progress.is_due(10)
    assert progress.is_due(10)
    late = progress.begin()
    assert progress.is_due(20)  # it may take as long to load as it needs to
    assert not progress.is_due(30)
    late.after_step()
    assert progress.is_due(30)


def test_an_old_pipeline_s_count_is_not_taken_for_a_new_one_s() -> None:
    progress = Progress(10)
    for now in range(0, 1000, 10):
        beat = progress.begin()
        assert progress.is_due(now)
        beat.end()
        del beat  # the next one has its place in memory


def test_pipelines_may_begin_and_end_in_threads_while_it_is_asked() -> None:
    progress = Progress(0)

    def live() -> None:
        for _ in range(3000):
            with progress.begin() as beat:
                beat.after_step()

    threads = [threading.Thread(target=live) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        progress.is_due(0)  # a dictionary that changed while it was read would raise
    assert progress.is_due(0)
