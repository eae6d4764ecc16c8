"""Callbacks that raise: publishing goes on, which one it was is said once, and shown until it works again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

from edge_sdk.publishing import (
    Backoff,
    Channel,
    EventOutbox,
    Incoming,
    MqttPublisher,
    MqttSettings,
    OutboxSettings,
    State,
)
from edge_sdk.publishing.durable.troubles import Troubles
from tests.device.delivery import Door, door_over, put, until
from tests.device.event_outboxes import outbox_at, payload
from tests.device.links import FakeLink
from tests.device.results import IDENTITY, make_encoder


def _warnings(link: FakeLink) -> dict[str, str]:
    states = link.documents("state")
    found: dict[str, str] = states[-1].get("warnings", {}) if states else {}
    return found


def test_a_listener_that_fails_is_said_once_and_shown_until_it_works_again() -> None:
    said: list[str] = []
    is_failing = [True]

    def listen(_state: State, _detail: str) -> None:
        if is_failing[0]:
            raise BrokenPipeError("nobody listens")

    first, second, third = FakeLink(), FakeLink(), FakeLink()
    publisher, door = door_over(first, second, third, on_state=listen, on_doubt=said.append)
    put(door, 1)
    until(lambda: publisher.stats().sent == 1)
    until(lambda: "callback/on_state" in _warnings(first))
    line = "on_state raised BrokenPipeError: nobody listens; publishing goes on without it, mend it"
    assert _warnings(first) == {"callback/on_state": line}
    assert publisher.stats().last_error == line
    first.drop("connection lost")
    until(lambda: publisher.stats().connects == 2)
    is_failing[0] = False
    second.drop("connection lost")
    until(lambda: bool(third.documents("state")) and not _warnings(third))
    put(door, 2)
    until(lambda: publisher.stats().sent == 2)
    publisher.close()
    assert said == [line]


def test_who_is_told_of_doubts_may_fail() -> None:
    def fail(line: str) -> NoReturn:
        raise ValueError(line)

    link = FakeLink()
    link.doubtful = {"broker_certificate": "it ends soon"}
    publisher, door = door_over(link, on_doubt=fail)
    put(door, 1)
    until(lambda: publisher.stats().sent == 1)
    until(lambda: len(_warnings(link)) == 2)
    assert "on_doubt raised ValueError: it ends soon" in _warnings(link)["callback/on_doubt"]
    publisher.close()


def test_who_is_told_of_the_disk_may_fail(tmp_path: Path) -> None:
    def fail(_name: str, line: str) -> NoReturn:
        raise ValueError(line[:4])

    told: list[tuple[str, str]] = []
    path = tmp_path / "file" / "events.sqlite"
    path.parent.write_text("no folder")
    with closing(EventOutbox(OutboxSettings(), path, "boot", on_trouble=fail)) as events:
        events.listen(lambda name, line: told.append((name, line)))
        link = FakeLink()
        publisher, door = door_over(link, events=events)
        door.put_event(payload)
        until(lambda: publisher.stats().events.delivered == 1)
        publisher.close()
    assert [name for name, _ in told] == ["outbox_disk", "callback/on_trouble"]
    assert told[1][1] == "on_trouble raised ValueError: even; events are kept without it, mend it"


def test_a_listener_that_works_again_is_said_to() -> None:
    told: list[tuple[str, str]] = []

    def fail(_name: str, line: str) -> None:
        if line:
            raise ValueError(line)

    troubles = Troubles(fail)
    troubles.listen(lambda name, line: told.append((name, line)))
    troubles.say("outbox_disk", "full")
    troubles.say("outbox_disk", "")
    assert [(name, bool(line)) for name, line in told] == [
        ("outbox_disk", True),
        ("callback/on_trouble", True),
        ("outbox_disk", False),
        ("callback/on_trouble", False),
    ]


class _Receiver:
    """Fails at every message but `good`."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.refusals = 0

    def receive(self, incoming: Incoming) -> None:
        if incoming.payload != b"good":
            raise KeyError("no such command")
        self.taken.append(incoming.payload)

    def refused(self, _line: str) -> None:
        self.refusals += 1
        raise OSError("disk full")


def test_who_takes_what_comes_may_fail_and_the_connection_stays() -> None:
    """Otherwise a retained message that it fails at would cost every connection."""
    link, receiver, said = FakeLink(), _Receiver(), list[str]()
    publisher, door = door_over(link, on_doubt=said.append, receiver=receiver, listens_to=("cmd",))
    link.incoming += [Incoming("cmd", b"bad"), Incoming("cmd", b"bad"), Incoming("cmd", b"good")]
    link.refused.append("not allowed")
    put(door, 1)
    until(lambda: receiver.taken == [b"good"] and receiver.refusals == 1)
    until(lambda: publisher.stats().sent == 1)
    until(lambda: list(_warnings(link)) == ["callback/the receiver of refusals"])  # the other one works again
    publisher.close()
    assert publisher.stats().connects == 1
    assert [line.split(";")[0] for line in said] == [
        "the receiver of messages raised KeyError: 'no such command'",
        "the receiver of refusals raised OSError: disk full",
    ]


def _fail(_seq: int) -> NoReturn:
    raise TypeError("not JSON")


def test_an_event_that_cannot_be_encoded_is_whose_put_it_and_leaves_no_gap(tmp_path: Path) -> None:
    link = FakeLink()
    with outbox_at(tmp_path / "events.sqlite") as events:
        publisher, door = door_over(link, events=events)
        first = door.put_event(payload)
        with pytest.raises(TypeError, match="not JSON"):
            door.put_event(_fail)
        assert first is not None
        assert door.put_event(payload) == first + 1
        until(lambda: publisher.stats().events.delivered == 2)
        publisher.close()


def _limited_door(link: FakeLink, said: list[str]) -> Door:
    settings = MqttSettings(host="broker", port=1883, device="pi", events=Channel(qos=1, expiry_s=60, max_per_s=20.0))
    publisher = MqttPublisher(
        settings, IDENTITY, on_doubt=said.append, backoff=Backoff(0.001, 0.002), make_link=lambda: link
    )
    return Door(publisher, publisher.stream("door", make_encoder()))


def test_an_event_that_was_held_and_cannot_be_encoded_costs_no_connection_and_no_other_event() -> None:
    link, said = FakeLink(), list[str]()
    publisher, door = _limited_door(link, said)
    yard = publisher.stream("yard", make_encoder())
    for stream in (door, yard):
        assert stream.put_event(payload) is not None
    assert door.put_event(_fail) is None  # it waits for its turn
    assert yard.put_event(payload) is None
    until(lambda: publisher.stats().events.delivered == 3)
    assert door.put_event(_fail) is None
    publisher.close()
    assert publisher.stats().connects == 1
    line = "an event is left out that cannot be encoded: TypeError: not JSON; mend who puts it"
    assert line in [state.get("warnings", {}).get("event_encoding") for state in link.documents("state")]
