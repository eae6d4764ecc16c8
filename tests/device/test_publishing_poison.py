"""A message at which the broker hangs up is found and given up, and no other one ever is."""

from __future__ import annotations

import itertools
from pathlib import Path

from edge_sdk.publishing.durable import Losses
from edge_sdk.publishing.link import Kind
from edge_sdk.publishing.outbox import Message
from edge_sdk.publishing.poison import Poison
from tests.device.delivery import door_over, put, until
from tests.device.event_outboxes import outbox_at, payload
from tests.device.links import FakeLink

_STATUS: tuple[Kind, Message] = ("status", Message("edge/v1/default/pi/status", b"{}"))


def _event(seq: int) -> tuple[Kind, Message]:
    return "event", Message("edge/v1/default/pi/event/door", b"x" * 9, "door", "event", seq)


class _Touchy(FakeLink):
    """Hangs up when it gets a payload of more than so many bytes, and answers what came before."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def publish(self, kind: Kind, message: Message) -> int:
        number = super().publish(kind, message)
        if kind in ("event", "result", "snapshot") and len(message.payload) > self._most_bytes:
            self._unanswered.remove(number)
            self.drop("connection lost")
        return number


def test_who_was_alone_on_its_way_three_times_is_to_blame() -> None:
    poison = Poison()
    for _ in range(2):
        assert not poison.is_suspected
        assert poison.ended([_event(1), _event(2)]) is None
    assert [poison.ended([_event(1)]) for _ in range(3)] == [None, None, _event(1)]
    assert not poison.is_suspected


def test_a_broker_that_takes_nothing_costs_few_messages() -> None:
    poison = Poison()
    blamed = [poison.ended([_event(0)]) is not None for _ in range(1000)]
    assert [number for number, is_blamed in enumerate(blamed, 1) if is_blamed] == [5, 13, 27, 53, 103, 201, 395, 781]
    poison.took()
    poison.relax()
    assert [poison.ended([_event(1)]) is not None for _ in range(5)] == [False] * 4 + [True]


def test_bad_luck_is_no_guilt() -> None:
    poison = Poison()
    for seq in range(100):  # each time another one
        assert poison.ended([_event(seq)]) is None
    poison.relax()
    for _ in range(100):  # never alone, or nothing of a camera
        assert poison.ended([_STATUS, _event(1)]) is None
        assert poison.ended([_STATUS]) is None
        assert poison.ended([]) is None
    for _ in range(100):  # a connection that held in between
        assert poison.ended([_event(1)]) is None
        assert poison.ended([_event(1)]) is None
        poison.relax()


def _picture(seq: int, size: int = 20_000) -> tuple[Kind, Message]:
    return "snapshot", Message("edge/v1/default/pi/snapshot/door", b"x" * size, "door", "snapshot", seq)


def test_the_largest_message_is_to_blame_for_a_link_that_times_out_three_times() -> None:
    poison = Poison()
    flying = [_STATUS, _event(1), _picture(1), _picture(2, 30_000), _event(2)]
    for _ in range(2):
        assert [poison.timed_out(flying), poison.timed_out(flying)] == [None, None]
        poison.relax()  # a link that is slow holds for long
        assert poison.timed_out(flying) == flying[3]
    assert not poison.is_suspected
    assert [poison.timed_out([_picture(seq)]) for seq in range(9)] == [None] * 9  # each time another one


def test_what_the_kernel_takes_at_once_is_never_to_blame_for_a_link_that_times_out() -> None:
    poison = Poison()
    assert [poison.timed_out([_STATUS, _event(1), _picture(1, 16_000)]) for _ in range(9)] == [None] * 9


def test_events_behind_one_at_which_the_broker_hangs_up_arrive(tmp_path: Path) -> None:
    links = [_Touchy(1000) for _ in range(20)]
    with outbox_at(tmp_path / "events.sqlite") as events:
        publisher, door = door_over(*links, events=events)
        until(lambda: publisher.stats().state == "online")
        for size in (20, 2000, 20, 20, 3000, 20):
            door.put_event(lambda seq, size=size: payload(seq, size))  # type: ignore[misc]
        until(lambda: publisher.stats().events.delivered == 4)
        until(lambda: publisher.stats().events.lost == Losses(quarantine=2))
        assert publisher.stats().connects <= 11
        publisher.close()
    said = [
        state["warnings"]["events_refused"]
        for link in links
        for state in link.documents("state")
        if "warn" in str(state)
    ]
    assert "it ended the connection each time it got one of 2000 bytes; raise its limit of a message" in said[0]


def test_results_behind_one_at_which_the_broker_hangs_up_arrive() -> None:
    publisher, door = door_over(*(_Touchy(10) for _ in range(20)))
    until(lambda: publisher.stats().state == "online")
    put(door, 1, 2)
    until(lambda: publisher.stats().sent == 2)
    stats = publisher.stats()
    publisher.close()
    assert (stats.acknowledged, stats.rejected) == (0, 2)


def test_a_picture_at_which_the_broker_hangs_up_is_found_behind_results_that_never_end() -> None:
    links = [_Touchy(1000) for _ in range(20)]
    publisher, door = door_over(*links)
    until(lambda: publisher.stats().state == "online")
    publisher.snapshot("door", b"x" * 2000, 1)
    numbers = itertools.count()

    def goes_on() -> bool:
        put(door, *itertools.islice(numbers, 100))  # as fast as they are answered, and faster
        return publisher.stats().snapshots_lost == 1

    until(goes_on)
    assert publisher.stats().connects <= 6
    publisher.close()
