"""What waits for a reader: bounded by number and bytes, in order, and never in the way of who fills it."""

from __future__ import annotations

from edge_sdk.publishing.backlog import Backlog, Heard


def _put(backlog: Backlog, number: int, size: int = 1) -> tuple[int, bool]:
    backlog.put(Heard(str(number), b"x" * size, 1, retain=False))
    return backlog.lost, backlog.is_half_full


def _topics(backlog: Backlog) -> list[str]:
    return [heard.topic for heard in backlog.take(0)]


def test_there_is_room_for_so_many_and_again_once_they_are_read() -> None:
    backlog = Backlog(3)
    assert [_put(backlog, number) for number in range(5)] == [(0, False), (0, True), (0, True), (1, True), (2, True)]
    assert _topics(backlog) == ["0", "1", "2"]
    assert _put(backlog, 5) == (2, False)
    assert (_topics(backlog), _topics(backlog)) == (["5"], [])


def test_there_is_room_for_so_many_bytes_and_for_one_that_is_larger_alone() -> None:
    backlog = Backlog(100, 10)
    assert [_put(backlog, number, 4) for number in range(3)] == [(0, False), (0, True), (1, True)]
    assert _topics(backlog) == ["0", "1"]
    assert _put(backlog, 3, 20) == (1, True)
    assert _put(backlog, 4) == (2, True)
    assert _topics(backlog) == ["3"]
