"""When a device says what it has to say, by a clock of the test's; and the numbers of its cameras' frames."""

from __future__ import annotations

import math
import threading
from datetime import datetime, timezone

import msgspec

from edge_sdk.publishing import SourceState, Topics
from edge_sdk.publishing.board import Board
from edge_sdk.publishing.notices import Notices
from edge_sdk.publishing.seat import Seat
from tests.device.delivery import door_over, put, until
from tests.device.links import FakeLink
from tests.device.results import IDENTITY, MODEL

NOW = datetime(2026, 3, 2, 9, 15, 4, tzinfo=timezone.utc)
TOPICS = Topics("edge/v1", "yard", "pi")


class Desk:
    """Notices of a board with one camera, and the clock that they go by."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.board = Board(IDENTITY, {})
        self.door = self.board.join("door", MODEL)
        self.notices = Notices(self.board, TOPICS, lambda: self.now_s)
        self.notices.begin()

    def said(self) -> list[str]:
        """All that is to be said now, by its topic's last level."""
        return [message.topic.removeprefix("edge/v1/yard/pi/") for _, message in iter(self.notices.take, None)]

    def warn(self, line: str) -> None:
        self.board.warn(self.door, "hot", line)


def test_the_first_of_a_burst_goes_at_once_and_the_rest_together_after_a_second() -> None:
    desk = Desk()
    assert desk.said() == ["status", "state"]
    assert desk.notices.wait_s() == math.inf
    desk.now_s += 60
    desk.warn("70")
    assert desk.notices.wait_s() == 0
    assert desk.said() == ["state"]
    for degrees in range(71, 81):
        desk.now_s += 0.0625
        desk.warn(str(degrees))
        assert desk.said() == []
    assert desk.notices.wait_s() == 0.375
    desk.now_s += 0.375
    [(kind, message)] = iter(desk.notices.take, None)
    assert kind == "state"
    assert msgspec.json.decode(message.payload)["cameras"]["door"]["warnings"] == {"hot": "80"}
    assert desk.notices.wait_s() == math.inf


def test_status_and_state_change_apart() -> None:
    desk = Desk()
    desk.said()
    desk.now_s += 60
    desk.board.source(desk.door, SourceState(status="lost", since=NOW))
    assert desk.said() == ["state"]
    desk.now_s += 60
    desk.board.join("gate", MODEL)
    assert desk.said() == ["status", "state"]


def test_a_camera_leaves_when_it_is_done_and_another_stream_keeps_it() -> None:
    desk = Desk()
    desk.board.leave(desk.door)
    desk.board.release(lambda _camera: False)
    assert b"door" in desk.board.online()
    desk.board.release(lambda _camera: True)
    assert b"door" not in desk.board.online() + desk.board.state()
    again = desk.board.join("door", MODEL)
    said = desk.board.states
    assert not desk.board.warn(desk.door, "hot", "of a stream that is over")
    assert desk.board.states == said
    desk.board.leave(again)
    desk.board.join("door", MODEL)
    desk.board.release(lambda _camera: True)
    assert b"door" in desk.board.online()


def test_after_a_break_all_is_said_at_once() -> None:
    desk = Desk()
    desk.warn("70")
    for _ in range(3):
        desk.notices.begin()
        assert desk.said() == ["status", "state"]


def test_of_telemetry_the_newest_is_said_once() -> None:
    desk = Desk()
    desk.said()
    for payload in (b"1", b"2", b"3"):
        desk.notices.put_telemetry(payload)
    assert desk.notices.wait_s() == 0
    assert [message.payload for _, message in iter(desk.notices.take, None)] == [b"3"]
    assert desk.notices.wait_s() == math.inf


def test_before_the_goodbye_only_the_state_is_said_and_at_once() -> None:
    desk = Desk()
    desk.said()
    desk.warn("70")
    desk.board.join("gate", MODEL)
    desk.notices.put_telemetry(b"1")
    desk.notices.end()
    assert desk.notices.wait_s() == 0
    assert desk.said() == ["state"]
    assert desk.notices.wait_s() == math.inf
    desk.notices.begin()  # the connection broke in between: a goodbye follows a birth
    assert desk.said() == ["status", "state"]


def test_a_full_outbox_does_not_keep_a_device_from_saying_how_it_does() -> None:
    link = FakeLink(window=3)
    link.pace, link.pause_s = 1, 0.001
    publisher, door = door_over(link)
    until(lambda: bool(link.cameras()))
    put(door, *range(500))
    door.warn("hot", "70")

    def has_said_so() -> bool:
        put(door, *range(200))
        return any("warnings" in cameras["door"] for cameras in link.cameras())

    until(has_said_so)
    assert publisher.stats().queued > 0
    link.pace, link.pause_s = 10**9, 0.0
    publisher.close()


def test_numbers_are_given_once_however_many_hold_the_seat_in_turn() -> None:
    seat = Seat()
    given: list[int] = []

    def use() -> None:
        holder = object()
        seat.take(holder)
        for seq in range(5000):
            number = seat.number(holder, seq)
            if number is not None:
                given.append(number)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == len(set(given)) >= 5000


def test_who_lost_the_seat_cannot_give_it_back() -> None:
    seat, first, second = Seat(), object(), object()
    seat.take(first)
    assert seat.number(first, 4) == 4
    seat.take(second)
    assert seat.number(first, 5) is None
    assert not seat.leave(first)
    assert [seat.number(second, seq) for seq in (0, 2, 1)] == [5, 7, 6]
    assert seat.leave(second)
    assert seat.number(second, 3) is None
