"""The outbox keeps the newest, and the back-off spreads."""

from __future__ import annotations

import pytest

from edge_sdk.core.threads import Backoff
from edge_sdk.messages.schema import Message
from edge_sdk.publishing.queues import MemoryOutbox


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
    assert outbox.counts() == (10, len(kept), 10 - len(kept))
    assert _topics(outbox) == kept


@pytest.mark.parametrize(("max_messages", "max_bytes"), [(3, 1000), (100, 30)])
def test_what_is_given_back_does_not_push_out_newer_ones(max_messages: int, max_bytes: int) -> None:
    outbox = MemoryOutbox(max_messages, max_bytes)
    outbox.put(_message(8))
    outbox.put(_message(9))
    outbox.give_back([_message(n) for n in (5, 6, 7)])
    assert _topics(outbox) == [7, 8, 9]
    assert outbox.counts().dropped == 2


def _of(camera: str, number: int, size: int = 10) -> Message:
    return Message(f"{camera}/{number}", bytes(size), camera)


def _names(outbox: MemoryOutbox) -> list[str]:
    return [message.topic for message in iter(outbox.take, None)]


@pytest.mark.parametrize(
    ("max_messages", "max_bytes", "loud_bytes"),
    [(6, 10_000, 10), (1000, 60, 10), (1000, 60, 30)],
    ids=["messages", "bytes", "large ones"],
)
def test_a_loud_camera_never_pushes_out_what_is_a_quiet_ones_share(
    max_messages: int, max_bytes: int, loud_bytes: int
) -> None:
    outbox = MemoryOutbox(max_messages, max_bytes)
    outbox.put(_of("quiet", 0))
    for number in range(100):
        outbox.put(_of("loud", number, loud_bytes))
        if number % 40 == 30:
            outbox.put(_of("quiet", number))
        assert len(outbox) <= max_messages
    assert outbox.counts("quiet") == (3, 3, 0)
    put, queued, dropped = outbox.counts("loud")
    assert (put, dropped) == (100, 100 - queued)
    assert outbox.counts().dropped == dropped
    messages = [*iter(outbox.take, None)]
    assert sum(len(message.payload) for message in messages) <= max_bytes
    names = [message.topic for message in messages]
    assert [n for n in names if n.startswith("loud")] == [f"loud/{n}" for n in range(100 - queued, 100)]
    assert [n for n in names if n.startswith("quiet")] == ["quiet/0", "quiet/30", "quiet/70"]


def test_cameras_take_turns_each_in_its_own_order() -> None:
    outbox = MemoryOutbox()
    for number in range(4):
        outbox.put(_of("a", number))
    for camera in ("b", "c"):
        outbox.put(_of(camera, 0))
    assert _names(outbox) == ["a/0", "b/0", "c/0", "a/1", "a/2", "a/3"]


def test_what_is_given_back_goes_to_its_own_camera_and_pushes_out_no_others_share() -> None:
    outbox = MemoryOutbox(max_messages=4)
    for message in (_of("a", 0), _of("b", 0)):
        outbox.put(message)
    taken = [m for m in (outbox.take(), outbox.take()) if m is not None]
    for number in range(1, 5):
        outbox.put(_of("a", number))
    outbox.give_back(taken)
    assert sorted(_names(outbox)) == ["a/2", "a/3", "a/4", "b/0"]
    assert (outbox.counts("a").dropped, outbox.counts("b").dropped) == (2, 0)


def test_what_is_offered_takes_nobodys_room() -> None:
    outbox = MemoryOutbox(max_messages=2, max_bytes=100)
    assert outbox.offer(_of("a", 0))
    assert not outbox.offer(_of("b", 0, 95))
    assert outbox.offer(_of("b", 1))
    assert not outbox.offer(_of("a", 1))
    assert _names(outbox) == ["a/0", "b/1"]
    assert outbox.offer(_of("a", 2, 101)), "above all bounds: there is no room to wait for"
    assert outbox.counts() == (3, 0, 1)


def test_back_off_doubles_up_to_its_longest_and_begins_again() -> None:
    waits = list[tuple[float, float]]()
    backoff = Backoff(1, 10, uniform=lambda low, high: waits.append((low, high)) or high)  # type: ignore[func-returns-value]
    assert [backoff.next_s() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert waits[:2] == [(0.5, 1), (1, 2)]  # jitter takes the upper half
    backoff.reset()
    assert [backoff.next_s() for _ in range(2)] == [1, 2]
    assert [backoff.next_s(slow=True), backoff.next_s()] == [10, 10]  # after a refusal
