"""ACLs, brokers of older versions, rivals, failing callbacks: what happens is said, and over without a restart."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any, Literal

import pytest

from edge_sdk.publishing import Backoff, MqttPublisher, MqttSettings, State
from edge_sdk.publishing.mqtt import MqttLink
from tests.support.broker import WAIT_S, Broker, OldBroker, Subscriber, TlsBroker, free_port, wait_until
from tests.support.results import IDENTITY, make_encoder
from tests.support.subscribers import documents, numbers, publishing_to, put, until

pytestmark = pytest.mark.system


def test_an_acl_that_is_mended_needs_no_restart(tmp_path: Path) -> None:
    acl = ["user camera", "topic write edge/v1/default/pi/status", "topic write edge/v1/default/pi/state"]
    with (
        Broker(tmp_path, users={"camera": "right"}, acl=acl) as broker,
        publishing_to(broker, qos=1, user="camera", password="right") as (publisher, door),
    ):
        put(door, 1)
        until(publisher, lambda s: s.rejected == 1, "the complaint")
        assert "its ACL must let this device write below edge/v1/default/pi/" in publisher.stats().last_error
        (tmp_path / "acl").write_text("user camera\ntopic write edge/v1/#\n")
        os.kill(broker.pid, signal.SIGHUP)

        def is_taken() -> bool:
            put(door, 2)
            return publisher.stats().acknowledged > 0

        wait_until(is_taken, "an answer without a complaint")
        assert publisher.stats().connects == 1


def test_a_port_for_tls_that_is_spoken_to_without_it(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        TlsBroker(tmp_path) as broker,
        publishing_to(broker, port=broker.tls_port, on_state=lambda _, detail: said.append(detail)) as _,
    ):
        hint = "connection lost; perhaps that port wants TLS: write mqtts:// (wss://) in the URL"
        wait_until(lambda: hint in said, f"{hint}; {said}")


def test_a_broker_that_knows_no_mqtt_5_is_spoken_to_in_3_1_1(tmp_path: Path) -> None:
    """A door before Mosquitto refuses every CONNECT of version 5, as brokers of 2016 do."""
    doubts: list[str] = []
    with Broker(tmp_path) as broker, Subscriber(broker) as subscriber, OldBroker(broker) as old:
        settings = MqttSettings(device="pi", host="127.0.0.1", port=old.port, qos=1)
        publisher = MqttPublisher(settings, IDENTITY, on_doubt=doubts.append, backoff=Backoff(0.01, 0.1))
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


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_rival_that_leaves_leaves_the_device_as_it_was(tmp_path: Path, protocol: Literal["5", "3.1.1"]) -> None:
    said: list[tuple[State, str]] = []
    with (
        Broker(tmp_path) as broker,
        publishing_to(broker, qos=1, protocol=protocol, on_state=lambda *s: said.append(s)) as (first, door),
    ):
        until(first, lambda s: s.state == "online", "the connection")
        with publishing_to(broker, protocol=protocol) as (second, _):
            until(second, lambda s: s.connects > 1, "the quarrel")
            wait_until(lambda: any("--device" in d for _, d in said), "the suspicion")
        put(door, 7)
        until(first, lambda s: s.acknowledged == 1 and s.state == "online", "the answer")


def test_a_callback_that_fails_costs_the_connection_and_no_result(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In paho's own thread it would end publishing without a word."""
    answer, failures = MqttLink._on_publish, [1, 2, 3]

    def fail_at_first(link: MqttLink, *arguments: Any) -> None:
        if failures:
            failures.pop()
            raise RuntimeError("a callback failed")
        answer(link, *arguments)

    monkeypatch.setattr(MqttLink, "_on_publish", fail_at_first)
    with Subscriber(broker) as subscriber, publishing_to(broker, qos=1, keepalive_s=1) as (publisher, door):
        put(door, 1, 2)
        until(publisher, lambda s: s.acknowledged == 2, "the answers")
        assert publisher.stats().connects == 2
        assert set(numbers(subscriber)) == {1, 2}


@pytest.mark.parametrize("delay_s", [0, 60])
def test_a_will_waits_for_a_device_that_comes_back(broker: Broker, delay_s: int) -> None:
    """The device loses its connection for a moment: with a delay nobody hears that it is lost."""
    links: list[MqttLink] = []
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n", "there is no MQTT over websockets at /mqtt"),
        (b"\xff\xfe\r\n\r\n", "there is no MQTT over websockets at /mqtt"),
        (b"", "there is no MQTT over websockets at /mqtt"),
    ],
)
def test_what_is_no_websocket(answer: bytes, expected: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = MqttSettings(host="127.0.0.1", port=listener.getsockname()[1], device="pi", websocket_path="/mqtt")
        publisher = MqttPublisher(settings, IDENTITY, backoff=Backoff(0.01, 0.02))
        for _ in range(2):
            connection, _address = listener.accept()
            with connection:
                connection.settimeout(WAIT_S)
                assert connection.recv(1000).startswith(b"GET /mqtt HTTP/1.1\r\n")
                connection.sendall(answer)
        until(publisher, lambda s: expected in s.last_error, expected)
        publisher.close(2.0)


def test_websockets_and_a_frozen_broker(tmp_path: Path) -> None:
    port = free_port()
    with (
        Broker(tmp_path, config=[f"listener {port} 127.0.0.1", "protocol websockets"]) as broker,
        Subscriber(broker) as subscriber,
        publishing_to(broker, qos=1, port=port, websocket_path="/mqtt", keepalive_s=1) as (publisher, door),
    ):
        put(door, *range(20), count=100)
        until(publisher, lambda s: s.acknowledged == 20, "the answers")
        broker.freeze()
        put(door, *range(20, 60), count=100)
        until(publisher, lambda s: s.state == "connecting", "the end of patience")
        broker.thaw()
        until(publisher, lambda s: s.acknowledged == 60, "all answers")
        subscriber.wait_for(lambda _: set(numbers(subscriber)) == set(range(60)), "all results")
