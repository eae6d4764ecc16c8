"""The publisher and what brokers may answer: refusals, rubbish, MQTT 3.1.1, TLS."""

from __future__ import annotations

import socket

import pytest

from edge_sdk.publishing import (
    Backoff,
    MqttPublisher,
    MqttSettings,
    State,
)
from tests.device.results import IDENTITY
from tests.system.broker import WAIT_S, Broker, Subscriber, wait_until
from tests.system.publishers import (
    STATE,
    STATUS,
    documents,
    numbers,
    publishing_to,
    put,
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
