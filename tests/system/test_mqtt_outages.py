"""The publisher while its broker is absent, frozen or slow; and what brokers answer, forbid and do not know."""

import socket
from pathlib import Path
from typing import Literal

import pytest

from edge_sdk.core.protocols import Event
from edge_sdk.core.threads import Backoff
from edge_sdk.messages.schema import Channel
from edge_sdk.publishing.client import WINDOW, MqttConnection
from edge_sdk.publishing.publisher import MqttPublisher
from edge_sdk.publishing.session import ConnectionState
from edge_sdk.publishing.settings import MqttSettings
from tests.support.broker import WAIT_S, Broker, OldBroker, Proxy, Subscriber, TlsBroker, wait_until
from tests.support.connections import put
from tests.support.results import IDENTITY, make_detections, make_encoder, make_frame
from tests.support.subscribers import QOS, RESULT, numbers, publishing_to, until, wait_online, warnings

pytestmark = pytest.mark.system


@pytest.mark.parametrize("qos", QOS)
def test_a_frozen_broker_makes_nothing_grow(broker: Broker, qos: Literal[0, 1]) -> None:
    links: list[MqttConnection] = []
    with publishing_to(broker, qos=qos, links=links, keepalive_s=600) as (publisher, door):
        wait_online(publisher)
        broker.freeze()
        [link] = links
        for number in range(4000):  # 4000 * 10 kB: far more than the kernel's buffers hold
            put(door, number, count=100)
            assert max(len(link._client._out_packet), len(link._client._out_messages)) <= WINDOW
            assert publisher.stats().queued <= 1000
        stats = publisher.stats()
        assert (stats.put, stats.dropped > 1000) == (4000, True)
        assert stats.sent + stats.dropped + stats.queued >= 4000 - WINDOW
        broker.thaw()
        until(publisher, lambda s: s.queued == 0 and s.sent + s.dropped == s.put, "the end of the queue")
        assert publisher.stats().connects == 1


def test_a_message_above_the_limit_is_dropped_and_not_tried_for_ever(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        Broker(tmp_path, config=["max_packet_size 2000"]) as broker,
        Subscriber(broker) as subscriber,
        publishing_to(broker, qos=1, on_warning=said.append) as (publisher, door),
    ):
        put(door, 1)
        put(door, 2, count=100)
        put(door, 3)
        subscriber.wait_for(lambda _: numbers(subscriber) == [1, 3], "the small results")
        until(publisher, lambda s: (s.sent, s.too_large, s.connects, s.state) == (2, 1, 1, "online"), "the answers")
        put(door, 4, count=101)
        until(publisher, lambda s: s.too_large == 2, "the next one")
        door.put_event(lambda seq: bytes(4000))
        until(publisher, lambda s: s.events.lost.quarantine == 1, "the event that is put aside")
        [line] = [line for line in said if "is not sent" in line]  # once, and not once a result
        assert line.endswith("maximum packet size and is not sent; raise that there (max_packet_size)")
        broker.restart("max_packet_size 2000", "max_packet_size 200000")

        def arrives() -> bool:  # the subscriber comes back later than the publisher
            put(door, 5, count=100)
            return 5 in numbers(subscriber)

        wait_until(arrives, "a large result after the limit was raised")
        subscriber.wait_for(lambda _: "is not sent" not in str(warnings(subscriber)), "the warning's end")


@pytest.mark.parametrize("qos", QOS)
@pytest.mark.parametrize("room", [0, 1])
def test_the_size_of_a_packet_is_counted_right(tmp_path: Path, qos: Literal[0, 1], room: int) -> None:
    encoder = make_encoder(clock_ns=lambda: 0)
    payload = encoder.encode(make_detections(30, make_frame(1)))
    fixed_header_bytes, topic_bytes, properties_bytes = 3, 2 + len("edge/v1/default/pi/result/door"), 65
    message_id_bytes = 2 if qos else 0
    limit = fixed_header_bytes + topic_bytes + message_id_bytes + properties_bytes + len(payload) - 1 + room
    with (
        Broker(tmp_path, config=[f"max_packet_size {limit}"]) as broker,
        publishing_to(broker, qos=qos, encoder=encoder) as (publisher, door),
    ):
        put(door, 1, count=30)
        until(publisher, lambda s: s.sent + s.too_large == 1, "the decision")
        assert (publisher.stats().sent, publisher.stats().connects) == (room, 1)


@pytest.mark.parametrize("way", ["tcp", "wss"])
def test_an_event_goes_before_the_results_that_wait_for_a_slow_link(tmp_path: Path, way: str) -> None:
    with (
        TlsBroker(tmp_path, more=["protocol websockets"]) as broker,
        Subscriber(broker) as subscriber,
        Proxy(broker.port if way == "tcp" else broker.tls_port, bytes_per_s=120_000) as proxy,
        publishing_to(
            broker, **({**broker.reach, "websocket_path": "/mqtt"} if way == "wss" else {}) | {"port": proxy.port}
        ) as (publisher, door),
    ):
        put(door, *range(600), count=20)  # more than a megabyte
        subscriber.wait_for(lambda _: len(numbers(subscriber)) >= 10, "results")
        size = len(subscriber.messages(RESULT)[0].payload)
        for count in range(1, 4):
            sent = publisher.stats().sent
            door.put(Event(kind="test"))
            subscriber.wait_for(lambda _, count=count: len(subscriber.messages("/event/door")) == count, "the event")
            kinds = [message.topic.split("/")[4] for message in subscriber.messages()]
            before = kinds[: len(kinds) - kinds[::-1].index("event")].count("result")
            assert before - sent < 60, "it waited behind results that were not on the way yet"
            # What is on the way: a window, and what kernel and network hold.
            assert publisher.stats().sent * size - sum(proxy.pieces) < 60 * size
        proxy.bytes_per_s = 1e9
        subscriber.wait_for(lambda _: len(numbers(subscriber)) == 600, "all results")
        assert numbers(subscriber) == list(range(600))
        assert publisher.stats().connects == 1


def test_a_picture_for_which_a_link_is_too_slow_is_given_up_in_its_own_words(tmp_path: Path) -> None:
    said: list[str] = []
    ways = {"keepalive_s": 1, "snapshots": Channel(qos=1)}
    with (
        Broker(tmp_path) as broker,
        Subscriber(broker) as subscriber,
        Proxy(broker.port, bytes_per_s=4000) as proxy,
        publishing_to(
            broker, port=proxy.port, on_state=lambda *s: said.append(s[1]), on_warning=said.append, **ways
        ) as (publisher, door),
    ):
        wait_online(publisher)
        publisher.snapshot("door", b"x" * 60_000, 1)
        publisher.snapshot("door", b"x" * 1000, 2)
        wait_until(lambda: publisher.stats().snapshots_lost == 1, f"the end of the large one; {said}")
        door.put(Event(kind="after"))
        subscriber.wait_for(lambda _: bool(subscriber.messages("/event/door")), "the event behind it")
        subscriber.wait_for(lambda _: bool(subscriber.messages("/snapshot/door")), "the small picture")
        assert publisher.stats().connects > 3
    [blame] = [line for line in said if "given up" in line]
    assert blame.startswith("a message (snapshot) is given up: one of 60000 bytes took longer on this link than")
    assert not [line for line in said if "another program" in line or "max_packet_size" in line]


# What brokers may refuse, forbid or not know: it is logged, and corrected without a restart of the device.

CONNACK = b"\x20\x03\x00\x00\x00"
_NO_WEBSOCKET = (b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n", b"\xff\xfe\r\n\r\n", b"")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("path", "answer", "state", "expected"),
    [
        *(("/mqtt", answer, "connecting", "there is no MQTT over websockets at /mqtt") for answer in _NO_WEBSOCKET),
        (None, CONNACK + b"\xe0\x01\x8e", "refused", "Session taken over: another program has the same site"),
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
        subscriber.wait_for(lambda _: "mqtt_qos" in warnings(subscriber), "the state")
        assert (publisher.stats().events.waiting, subscriber.messages("/event/door")) == (30, [])
        broker.restart("max_qos 0", "max_qos 1")
        until(publisher, lambda s: s.events.delivered == 30 and not s.events.waiting, "the answers")
        subscriber.wait_for(lambda _: "mqtt_qos" not in warnings(subscriber), "the end of the warning")
        assert publisher.stats().events.lost.total == 0


def test_a_broker_that_keeps_no_retained_messages_is_told_what_to_allow(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, config=["retain_available false"]) as broker,
        publishing_to(broker, qos=1) as (publisher, door),
    ):
        put(door, 1)
        until(publisher, lambda s: s.state == "refused", "the refusal")
        assert publisher.stats().last_error.endswith("let it keep retained messages (retain_available)")
        broker.restart("available false", "available true")
        until(publisher, lambda s: s.acknowledged == 1, "the answer to what waited")


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
        subscriber.wait_for(lambda _: bool(warnings(subscriber)), "the warning")
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
