"""The outbox keeps the newest, and the back-off spreads."""

from __future__ import annotations

import pytest

from edge_sdk.publishing import Backoff, MemoryOutbox
from edge_sdk.publishing.outbox import Message


def _message(number: int, size: int = 10) -> Message:
    return Message(f"t/{number}", bytes(size))


def _topics(outbox: MemoryOutbox) -> list[int]:
    taken = []
    while (message := outbox.take()) is not None:
        taken.append(int(message.topic[2:]))
    return taken


@pytest.mark.parametrize(
    ("max_messages", "max_bytes", "size", "kept"),
    [
        (3, 1000, 10, [7, 8, 9]),
        (100, 35, 10, [7, 8, 9]),
        (100, 30, 10, [7, 8, 9]),
        (100, 1000, 10, list(range(10))),
        (100, 9, 10, []),
    ],
)
def test_the_oldest_make_room(max_messages: int, max_bytes: int, size: int, kept: list[int]) -> None:
    outbox = MemoryOutbox(max_messages, max_bytes)
    for number in range(10):
        outbox.put(_message(number, size))
        assert len(outbox) <= max_messages
        assert outbox.waiting_bytes <= max_bytes
    assert (outbox.put_count, outbox.dropped_count) == (10, 10 - len(kept))
    assert _topics(outbox) == kept
    assert outbox.waiting_bytes == 0


def test_what_is_given_back_comes_first_again() -> None:
    outbox = MemoryOutbox()
    for number in range(4):
        outbox.put(_message(number))
    taken = [outbox.take(), outbox.take()]
    outbox.give_back([m for m in taken if m is not None])
    assert outbox.waiting_bytes == 40
    assert _topics(outbox) == [0, 1, 2, 3]
    assert outbox.put_count == 4


@pytest.mark.parametrize(("max_messages", "max_bytes"), [(3, 1000), (100, 30)])
def test_what_is_given_back_does_not_push_out_newer_ones(max_messages: int, max_bytes: int) -> None:
    outbox = MemoryOutbox(max_messages, max_bytes)
    outbox.put(_message(8))
    outbox.put(_message(9))
    outbox.give_back([_message(n) for n in (5, 6, 7)])
    assert _topics(outbox) == [7, 8, 9]
    assert outbox.dropped_count == 2


def test_back_off_doubles_up_to_its_longest_and_begins_again() -> None:
    backoff = Backoff(1, 10, uniform=lambda _low, high: high)
    assert [backoff.next_s() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.reset()
    assert [backoff.next_s() for _ in range(2)] == [1, 2]


def test_a_refusal_waits_longest_at_once() -> None:
    backoff = Backoff(1, 10, uniform=lambda _low, high: high)
    assert [backoff.next_s(slow=True), backoff.next_s()] == [10, 10]


def test_jitter_takes_the_upper_half() -> None:
    ranges: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        ranges.append((low, high))
        return low

    backoff = Backoff(2, 60, uniform=uniform)
    assert [backoff.next_s(), backoff.next_s()] == [1, 2]
    assert ranges == [(1, 2), (2, 4)]
