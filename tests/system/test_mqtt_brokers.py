"""The publisher and what brokers may answer: refusals, rubbish, MQTT 3.1.1, TLS."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from edge_sdk.event import Event
from edge_sdk.publishing import (
    Backoff,
    MqttPublisher,
    MqttSettings,
    State,
)
from tests.support.broker import WAIT_S, Broker, Subscriber, wait_until
from tests.support.results import IDENTITY
from tests.support.subscribers import (
    STATE,
    STATUS,
    documents,
    numbers,
    publishing_to,
    put,
    until,
)

pytestmark = pytest.mark.system


CONNACK = b"\x20\x03\x00\x00\x00"


@pytest.mark.parametrize(
    ("answer", "state", "expected"),
    [
        (
            CONNACK + b"\xe0\x01\x8e",
            "refused",
            "Session taken over: another program has the same site and device, give each its own name",
        ),
        (CONNACK + b"\xe0\x01\x8b", "connecting", "Server shutting down"),
        (CONNACK, "connecting", "connection lost"),
        (b"", "connecting", "connection lost"),
        (b"\x20\x03\x00\x84\x00", "connecting", "the broker knows no MQTT 5"),
        (b"\x20\x02\x00\x01", "connecting", "the broker knows no MQTT 5"),
        (b"\x20\x03\x00\x86\x00", "refused", "Bad user name or password (reason code 134)"),
        (b"\x20\x03\x00\x88\x00", "connecting", "Server unavailable"),
        (b"\x20\x02\x00\x05", "connecting", ""),
        (b"\x20\x03\x00\x9b\x00", "connecting", "the broker takes QoS 0 only"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "connecting", ""),
        (b"\xff" * 100, "connecting", ""),
    ],
)
def test_what_a_broker_may_answer(answer: bytes, state: State, expected: str) -> None:
    """A listener of a few lines, for what Mosquitto does not say; it stays usable afterwards."""
    states: list[tuple[State, str]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        settings = MqttSettings(host="127.0.0.1", port=listener.getsockname()[1], device="pi")
        publisher = MqttPublisher(settings, IDENTITY, on_state=lambda *s: states.append(s), backoff=Backoff(0.01, 0.02))
        for _ in range(2):
            connection, _address = listener.accept()
            with connection:
                connection.settimeout(WAIT_S)
                assert connection.recv(1000).startswith(b"\x10")
                connection.sendall(answer)
        wait_until(lambda: any(s == state and expected in d for s, d in states), f"{expected!r}; {states}")
        publisher.close(timeout_s=2.0)
        assert not publisher._thread.is_alive()


def test_a_broker_of_mqtt_3(broker: Broker) -> None:
    with Subscriber(broker) as subscriber:
        with publishing_to(broker, qos=1, protocol="3.1.1") as (publisher, door):
            put(door, 1, 2)
        # A connection that is faster than the first camera tells of the device once more.
        subscriber.wait_for(lambda _: bool(subscriber.messages(STATE)), "a state")
        wait_until(lambda: [d["status"] for d in documents(subscriber.messages(STATUS))][-1:] == ["offline"], "the end")
        wait_until(lambda: len(numbers(subscriber)) == 2, "results")
        assert numbers(subscriber) == [1, 2]
        assert publisher.stats().acknowledged == 2


def test_events_wait_for_a_broker_that_takes_qos_1(tmp_path: Path) -> None:
    """Sent at QoS 0 they would count as delivered, and nobody would know whether they were."""
    doubts: list[str] = []
    with (
        Broker(tmp_path, config=["max_qos 0"]) as broker,
        Subscriber(broker) as subscriber,
        publishing_to(broker, qos=1, on_doubt=doubts.append) as (publisher, door),
    ):
        for number in range(30):  # more than a window
            door.put(Event(kind=f"{number}"))
        put(door, 1)
        subscriber.wait_for(lambda _: numbers(subscriber) == [1], "the result, which nobody acknowledges")
        until(publisher, lambda s: "takes QoS 0 only" in s.last_error, "the reason")
        [line] = doubts
        assert line.startswith("this broker takes QoS 0 only: events cannot be acknowledged, and wait; have it take")
        subscriber.wait_for(
            lambda _: any("mqtt_qos" in state["warnings"] for state in documents(subscriber.messages(STATE))),
            "the state",
        )
        assert (publisher.stats().events.waiting, subscriber.messages("/event/door")) == (30, [])
        config = tmp_path / "mosquitto.conf"
        config.write_text(config.read_text().replace("max_qos 0", "max_qos 1"))
        known = len(subscriber.messages(STATE))
        broker.restart()
        until(publisher, lambda s: s.events.delivered == 30 and not s.events.waiting, "the answers")
        subscriber.wait_for(
            lambda _: len(subscriber.messages(STATE)) > known and "mqtt_qos" not in _newest_state(subscriber),
            "the end of the warning",
        )
        door.put(Event(kind="last"))  # the others may have come before the subscriber was back
        subscriber.wait_for(lambda _: bool(subscriber.messages("/event/door")), "an event")
        assert {message.qos for message in subscriber.messages("/event/door")} == {1}
        assert publisher.stats().events.lost.total == 0


def test_a_broker_that_keeps_no_retained_messages_is_told_what_to_allow(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, config=["retain_available false"]) as broker,
        publishing_to(broker, qos=1) as (publisher, door),
    ):
        put(door, 1)
        until(publisher, lambda s: s.state == "refused", "the refusal")
        assert publisher.stats().last_error == (
            "Retain not supported (reason code 154): status and last will are retained, let it keep retained messages "
            "(retain_available)"
        )
        config = tmp_path / "mosquitto.conf"
        config.write_text(config.read_text().replace("available false", "available true"))
        broker.restart()
        until(publisher, lambda s: s.acknowledged == 1, "the answer to what waited")


def _newest_state(subscriber: Subscriber) -> str:
    """As text; empty where none was heard."""
    return "".join(message.payload.decode() for message in subscriber.messages(STATE)[-1:])
