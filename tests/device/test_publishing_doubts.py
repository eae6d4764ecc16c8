"""What is not wrong yet: looked at with every connection and once a day, said once, taken back."""

from __future__ import annotations

import msgspec

from edge_sdk.publishing.board import Board
from edge_sdk.publishing.dialect import Dialect
from edge_sdk.publishing.doubts import Doubts
from edge_sdk.publishing.link import Kind
from edge_sdk.publishing.outbox import Message
from tests.device.delivery import door_over, put, until
from tests.device.links import FakeLink
from tests.device.results import IDENTITY

_DAY_S = 24 * 60 * 60


def _warnings(board: Board) -> dict[str, str]:
    found: dict[str, str] = msgspec.json.decode(board.state()).get("warnings", {})
    return found


def test_a_connection_that_holds_is_looked_at_once_a_day() -> None:
    now, said = [1000.0], list[str]()
    board, link = Board(IDENTITY, {}), FakeLink()
    doubts = Doubts(board, said.append, lambda: now[0])
    doubts.look(link)
    link.doubtful = {"broker_certificate": "ends soon"}
    now[0] += _DAY_S - 1
    doubts.look_daily(link)
    assert _warnings(board) == {}
    now[0] += 1
    doubts.look_daily(link)
    doubts.look_daily(link)
    assert (_warnings(board), said) == ({"broker_certificate": "ends soon"}, ["ends soon"])
    link.doubtful = {"broker_certificate": ""}
    now[0] += _DAY_S
    doubts.look_daily(link)
    assert (_warnings(board), said) == ({}, ["ends soon"])


def test_a_publisher_looks_at_each_connection() -> None:
    first, second = FakeLink(), FakeLink()
    second.doubtful = {"mqtt_version": "old"}
    publisher, _ = door_over(first, second)
    until(lambda: bool(first.documents("status")))
    first.drop("connection lost")
    until(lambda: any("warnings" in document for document in second.documents("state")))
    publisher.close()


def test_a_broker_is_found_not_to_know_5_once() -> None:
    dialect = Dialect("5")
    assert (dialect.is_v5, dialect.doubt) == (True, "")
    assert dialect.fall_back()
    assert not dialect.is_v5
    assert dialect.doubt.startswith("the broker knows no MQTT 5")
    assert not dialect.fall_back()
    assert Dialect("3.1.1").doubt == ""  # it was asked for


class _Narrow(FakeLink):
    """Takes no state."""

    def fits(self, kind: Kind, message: Message) -> bool:
        return kind != "state" and super().fits(kind, message)


def test_a_state_above_the_limit_is_said_once_and_publishing_goes_on() -> None:
    said: list[str] = []
    publisher, door = door_over(_Narrow(), on_doubt=said.append)
    for name in ("hung", "not_finite"):
        door.warn(name, "of the door")
    put(door, 1)
    until(lambda: publisher.stats().sent == 1)
    until(lambda: bool(said))
    publisher.close()
    [line] = said
    assert line.startswith("a message (state) of ")
    assert line.endswith(
        "bytes is above the broker's maximum packet size and is not sent; raise that there (max_packet_size)"
    )
