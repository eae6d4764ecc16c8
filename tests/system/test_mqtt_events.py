"""Events and pictures through a real Mosquitto, beside results: their order, their rates, and a broker that is away."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from edge_sdk.event import Event
from edge_sdk.publishing import Channel, MqttPublisher, Stream
from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.subscribers import documents, numbers, publishing_to, put, until, wait_online

pytestmark = pytest.mark.system

EVENT, SNAPSHOT = "/event/door", "/snapshot/door"
JPEG = b"\xff\xd8" + bytes(30_000)


def _tell(stream: Stream, *kinds: object) -> None:
    for kind in kinds:
        stream.put(Event(kind=f"{kind}"))


def _told(subscriber: Subscriber) -> list[tuple[str, int]]:
    """Kinds and numbers."""
    return [(d["kind"], d["seq"]) for d in documents(subscriber.messages(EVENT))]


def _is_connecting(publisher: MqttPublisher) -> bool:
    return publisher.stats().state == "connecting"


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_all_kinds_arrive_with_what_the_protocol_can_say(broker: Broker, protocol: str) -> None:
    with Subscriber(broker) as subscriber:
        with publishing_to(broker, protocol=protocol) as (_, door):
            put(door, 41)
            _tell(door, "a", "b")
            door.put_snapshot(JPEG, 41)
            subscriber.wait_for(lambda ms: any(m.topic.endswith(SNAPSHOT) for m in ms), "the picture")
        first, second = subscriber.messages(EVENT)
        [picture] = subscriber.messages(SNAPSHOT)
    assert (first.qos, first.retain, picture.qos, picture.retain) == (1, False, 0, False)
    assert picture.payload == JPEG
    if protocol == "3.1.1":
        assert (first.user_properties, picture.content_type, first.expiry_s) == ((), None, None)
        return
    number = documents([first])[0]["seq"]
    assert first.user_properties == (("schema", "1"), ("stream", "event"), ("seq", str(number)))
    assert second.user_properties[-1] == ("seq", str(number + 1))
    assert picture.user_properties == (("schema", "1"), ("stream", "snapshot"), ("seq", "41"))
    assert picture.content_type == "image/jpeg"
    assert first.expiry_s in range(604_790, 604_801)
    assert picture.expiry_s in range(3590, 3601)


def test_the_numbers_of_events_go_on_over_an_outage(broker: Broker) -> None:
    with publishing_to(broker) as (publisher, door):
        with Subscriber(broker) as before:
            _tell(door, "first")
            before.wait_for(lambda _: bool(before.messages(EVENT)), "the first event")
        [first] = documents(before.messages(EVENT))
        broker.stop()
        wait_until(lambda: _is_connecting(publisher), "the loss")
        for number in range(30):
            put(door, number)
            _tell(door, number)
        door.put_snapshot(JPEG, 29)
        broker.start()
        with Subscriber(broker) as subscriber:  # what goes out before it is back it does not hear
            until(publisher, lambda s: s.queued == 0, "the results")
            _tell(door, "last")
            # Those of the outage may have come before this subscriber was there.
            subscriber.wait_for(lambda _: "last" in dict(_told(subscriber)), "the last event")
            assert documents(subscriber.messages(EVENT))[-1]["seq"] == first["seq"] + 31


def test_nothing_is_twice_or_lost_of_what_a_frozen_broker_was_given(broker: Broker) -> None:
    with Subscriber(broker) as subscriber, publishing_to(broker, keepalive_s=2) as (publisher, door):
        wait_online(publisher)
        broker.freeze()
        _tell(door, *range(100))
        broker.thaw()
        subscriber.wait_for(lambda _: len(set(_told(subscriber))) == 100, "all events")
        told = sorted(set(_told(subscriber)), key=lambda told: told[1])
        assert told == [(f"{n}", told[0][1] + n) for n in range(100)]


@pytest.mark.parametrize("qos", [0, 1])
def test_of_results_at_a_rate_the_newest_are_published(broker: Broker, qos: Literal[0, 1]) -> None:
    with Subscriber(broker) as subscriber:
        with publishing_to(broker, qos=qos, max_per_s=4.0) as (publisher, door):
            wait_online(publisher)
            put(door, *range(50))
            subscriber.wait_for(lambda _: numbers(subscriber) == [0, 49], "the newest")
            put(door, 50, 51)
        subscriber.wait_for(lambda ms: b'"offline"' in ms[-1].payload, "the goodbye")
        assert numbers(subscriber)[-1] == 51
    assert publisher.stats().limited == 52 - len(numbers(subscriber))


def test_each_kind_has_the_qos_and_expiry_that_it_is_given(broker: Broker) -> None:
    channels = {"events": Channel(qos=1, expiry_s=111), "snapshots": Channel(qos=1, expiry_s=222)}
    with Subscriber(broker) as subscriber:
        with publishing_to(broker, qos=1, expiry_s=333, **channels) as (_, door):
            put(door, 1)
            _tell(door, "a")
            door.put_snapshot(JPEG, 1)
            subscriber.wait_for(lambda ms: any(m.topic.endswith(SNAPSHOT) for m in ms), "the picture")
        ways = {m.topic.split("/")[4]: (m.qos, m.expiry_s) for m in subscriber.messages("/door")}
    expected = {"event": (1, 111), "snapshot": (1, 222), "result": (1, 333)}
    for kind, (qos, expiry_s) in expected.items():
        assert ways[kind][0] == qos
        assert ways[kind][1] in range(expiry_s - 5, expiry_s + 1)


@pytest.mark.parametrize("number", [0, 9, 10, 99_999])
def test_a_picture_of_just_the_size_that_the_broker_takes_arrives(tmp_path: Path, number: int) -> None:
    # MQTT 5.0, 3.3: type and length 1 + 2; topic; the properties and their length; the payload.
    topic = len(b"edge/v1/default/pi/snapshot/door") + 2
    pairs = (("schema", "1"), ("stream", "snapshot"), ("seq", str(number)))
    properties = 2 + 5 + 3 + len("image/jpeg") + sum(5 + len(name) + len(value) for name, value in pairs)
    room = 2000 - 3 - topic - 1 - properties
    with (
        Broker(tmp_path, config=["max_packet_size 2000"]) as broker,
        Subscriber(broker) as subscriber,
        publishing_to(broker) as (publisher, door),
    ):
        wait_online(publisher)
        door.put_snapshot(bytes(room + 1), number)
        wait_until(lambda: "(snapshot)" in publisher.stats().last_error, "the one that is too large")
        door.put_snapshot(bytes(room), number)
        subscriber.wait_for(lambda ms: any(m.topic.endswith(SNAPSHOT) for m in ms), "the one that fits")
        assert [len(m.payload) for m in subscriber.messages(SNAPSHOT)] == [room]
        assert publisher.stats().connects == 1


def test_events_are_json_that_says_what_was_put(broker: Broker) -> None:
    with Subscriber(broker) as subscriber:
        with publishing_to(broker) as (_, door):
            door.put(Event(kind="door opened", label="front", detail={"count": 2}))
            subscriber.wait_for(lambda _: bool(_told(subscriber)), "the event")
        [message] = subscriber.messages(EVENT)
    document = msgspec.json.decode(message.payload)
    assert (document["kind"], document["label"], document["detail"]) == ("door opened", "front", {"count": 2})
