"""What brokers may answer, forbid and not know: it is said, and mended without a restart of the device."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from edge_sdk.core.protocols import Event
from edge_sdk.core.threads import Backoff
from edge_sdk.publishing.client import MqttConnection
from edge_sdk.publishing.publisher import MqttPublisher
from edge_sdk.publishing.session import ConnectionState
from edge_sdk.publishing.settings import MqttSettings
from tests.support.broker import WAIT_S, Broker, OldBroker, Subscriber, wait_until
from tests.support.results import IDENTITY, make_encoder
from tests.support.subscribers import STATE, documents, numbers, publishing_to, put, until

pytestmark = pytest.mark.system

CONNACK = b"\x20\x03\x00\x00\x00"


_NO_WEBSOCKET = (b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n", b"\xff\xfe\r\n\r\n", b"")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("path", "answer", "state", "expected"),
    [
        *(("/mqtt", answer, "connecting", "there is no MQTT over websockets at /mqtt") for answer in _NO_WEBSOCKET),
        (
            None,
            CONNACK + b"\xe0\x01\x8e",
            "refused",
            "Session taken over: another program has the same site",
        ),
        (None, CONNACK, "connecting", "connection lost"),
        (None, b"", "connecting", "connection lost"),
        (None, b"\x20\x02\x00\x01", "connecting", "the broker knows no MQTT 5"),
        (None, b"\x20\x03\x00\x86\x00", "refused", "Bad user name or password (reason code 134)"),
        (None, b"\x20\x03\x00\x88\x00", "connecting", "Server unavailable"),
        (None, b"\x20\x03\x00\x9b\x00", "connecting", "the broker takes QoS 0 only"),
        (None, b"\xff" * 100, "connecting", ""),
    ],
)
def test_what_a_broker_may_answer(path: str | None, answer: bytes, state: ConnectionState, expected: str) -> None:
    """A listener of a few lines, for what Mosquitto does not say; it stays usable afterwards."""
    states: list[tuple[ConnectionState, str]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        settings = MqttSettings(host="127.0.0.1", port=listener.getsockname()[1], device="pi", websocket_path=path)
        publisher = MqttPublisher(settings, IDENTITY, on_state=lambda *s: states.append(s), backoff=Backoff(0.01, 0.02))
        for _ in range(2):
            connection, _address = listener.accept()
            with connection:
                connection.settimeout(WAIT_S)
                assert connection.recv(1000).startswith(b"\x10" if path is None else b"GET /mqtt HTTP/1.1\r\n")
                connection.sendall(answer)
        wait_until(lambda: any(s == state and expected in d for s, d in states), f"{expected!r}; {states}")
        publisher.close(timeout_s=2.0)
        wait_until(lambda: not publisher._thread.is_alive(), "the end of its thread")


def test_events_wait_for_a_broker_that_takes_qos_1(tmp_path: Path) -> None:
    """Sent at QoS 0 they would count as delivered, and nobody would know whether they were."""
    doubts: list[str] = []
    with (
        Broker(tmp_path, config=["max_qos 0"]) as broker,
        Subscriber(broker) as subscriber,
        publishing_to(broker, qos=1, on_warning=doubts.append) as (publisher, door),
    ):
        for number in range(30):  # more than a window
            door.put(Event(kind=f"{number}"))
        put(door, 1)
        subscriber.wait_for(lambda _: numbers(subscriber) == [1], "the result, which nobody acknowledges")
        until(publisher, lambda s: "takes QoS 0 only" in s.last_error, "the reason")
        [line] = doubts
        assert line.startswith("this broker takes QoS 0 only: events cannot be acknowledged, and wait; have it take")
        subscriber.wait_for(lambda _: "mqtt_qos" in _newest_state(subscriber), "the state")
        assert (publisher.stats().events.waiting, subscriber.messages("/event/door")) == (30, [])
        config = tmp_path / "mosquitto.conf"
        config.write_text(config.read_text().replace("max_qos 0", "max_qos 1"))
        known = len(subscriber.messages(STATE))
        broker.restart()
        until(publisher, lambda s: s.events.delivered == 30 and not s.events.waiting, "the answers")
        subscriber.wait_for(lambda _: len(subscriber.messages(STATE)) > known, "a state")
        subscriber.wait_for(lambda _: "mqtt_qos" not in _newest_state(subscriber), "the end of the warning")
        assert publisher.stats().events.lost.total == 0


def test_a_broker_that_keeps_no_retained_messages_is_told_what_to_allow(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, config=["retain_available false"]) as broker,
        publishing_to(broker, qos=1) as (publisher, door),
    ):
        put(door, 1)
        until(publisher, lambda s: s.state == "refused", "the refusal")
        assert publisher.stats().last_error.endswith("let it keep retained messages (retain_available)")
        config = tmp_path / "mosquitto.conf"
        config.write_text(config.read_text().replace("available false", "available true"))
        broker.restart()
        until(publisher, lambda s: s.acknowledged == 1, "the answer to what waited")


def _newest_state(subscriber: Subscriber) -> str:
    """As text; empty where none was heard."""
    return "".join(message.payload.decode() for message in subscriber.messages(STATE)[-1:])


def test_a_broker_that_knows_no_mqtt_5_is_spoken_to_in_3_1_1(tmp_path: Path) -> None:
    """A door before Mosquitto refuses every CONNECT of version 5, as brokers of 2016 do."""
    doubts: list[str] = []
    with Broker(tmp_path) as broker, Subscriber(broker) as subscriber, OldBroker(broker) as old:
        settings = MqttSettings(device="pi", host="127.0.0.1", port=old.port, qos=1)
        publisher = MqttPublisher(settings, IDENTITY, on_warning=doubts.append, backoff=Backoff(0.01, 0.1))
        door = publisher.stream("door", make_encoder())
        put(door, 1)
        until(publisher, lambda s: s.acknowledged == 1, "the answer")
        broker.restart()
        put(door, 2)
        until(publisher, lambda s: s.acknowledged == 2, "the next answer")
        assert old.refused == 1  # once for the program, and not once a connection
        subscriber.wait_for(lambda _: "warnings" in documents(subscriber.messages("/state"))[-1], "the warning")
        publisher.close(WAIT_S)
    [said] = doubts
    assert said.startswith("the broker knows no MQTT 5, and 3.1.1 is spoken: ")


@pytest.mark.parametrize("delay_s", [0, 60])
def test_a_will_waits_for_a_device_that_comes_back(broker: Broker, delay_s: int) -> None:
    """The device loses its connection for a moment: with a delay nobody hears that it is lost."""
    links: list[MqttConnection] = []
    with (
        Subscriber(broker) as subscriber,
        publishing_to(broker, links=links, will_delay_s=delay_s) as (publisher, door),
    ):
        until(publisher, lambda s: s.connects == 1, "the connection")
        connection = links[0]._client.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)
        until(publisher, lambda s: s.connects == 2, "the next one")
        put(door, 1)
        subscriber.wait_for(lambda _: numbers(subscriber) == [1], "the result")
        wills = [message for message in subscriber.messages("/status") if message.payload == b"{}"]
        assert len(wills) == (delay_s == 0)
