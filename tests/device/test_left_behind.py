"""Threads that nobody can end are remembered for as long as they go on."""

from __future__ import annotations

from threading import Event, Thread

from edge_sdk import left_behind


def test_one_that_has_ended_is_forgotten_with_the_next() -> None:
    before, ends = [*left_behind._threads], [Event() for _ in range(3)]
    threads = [Thread(target=end.wait, daemon=True) for end in ends]
    for thread, end in zip(threads, ends, strict=True):
        thread.start()
        left_behind.join_or_leave(thread, 0.0)
        assert left_behind.is_any_left()
        assert thread in left_behind._threads
        end.set()
        thread.join()
    assert [thread for thread in left_behind._threads if thread not in before] == threads[-1:]


def test_one_that_ends_in_time_is_not_left() -> None:
    thread = Thread(target=lambda: None)
    thread.start()
    left_behind.join_or_leave(thread, 10.0)
    assert thread not in left_behind._threads
