"""The publisher against a real Mosquitto, read by a subscriber of its own."""

from __future__ import annotations

import datetime
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import jsonschema
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edge_sdk.publishing import (
    Backoff,
    MemoryOutbox,
    MqttPublisher,
    MqttSettings,
    PublisherStats,
    ResultEncoder,
    Secret,
    State,
    result_schema,
)
from edge_sdk.publishing.mqtt import WINDOW, MqttLink
from tests.device.results import make_detections, make_encoder, make_frame
from tests.system.broker import WAIT_S, Broker, Received, Subscriber, free_port, wait_until

pytestmark = pytest.mark.system

QOS: tuple[Literal[0, 1], ...] = (0, 1)
RESULT, STATUS = "/result/door", "/status"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path) as running:
        yield running


@contextmanager
def _publisher(
    broker: Broker,
    *,
    qos: Literal[0, 1] = 0,
    user: str = "",
    password: str | None = None,
    on_state: Callable[[State, str], None] | None = None,
    outbox: MemoryOutbox | None = None,
    encoder: ResultEncoder | None = None,
    links: list[MqttLink] | None = None,
    **changes: Any,
) -> Iterator[MqttPublisher]:
    host = {"host": broker.host, "port": broker.port, **changes}
    secret = None if password is None else Secret(password)
    settings = MqttSettings(device="pi", qos=qos, username=user or None, password=secret, **host)

    def make_link() -> MqttLink:
        assert links is not None
        links.append(MqttLink(settings, b"{}"))
        return links[-1]

    publisher = MqttPublisher(
        settings,
        encoder or make_encoder(),
        on_state=on_state,
        versions={"edge_sdk": "0.0"},
        outbox=outbox,
        backoff=Backoff(0.05, 0.2),
        make_link=None if links is None else make_link,
    )
    try:
        yield publisher
    finally:
        publisher.close(timeout_s=2.0)


def _put(publisher: MqttPublisher, *numbers: int, count: int = 2) -> None:
    for number in numbers:
        publisher.put(make_detections(count, make_frame(number)))


def _until(publisher: MqttPublisher, condition: Callable[[PublisherStats], bool], what: str) -> None:
    wait_until(lambda: condition(publisher.stats()), f"{what}; {publisher.stats()}")


def _online(publisher: MqttPublisher) -> None:
    _until(publisher, lambda s: s.state == "online", "the connection")


def _documents(messages: list[Received]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(m.payload) for m in messages]


def _numbers(subscriber: Subscriber) -> list[int]:
    return [d["seq"] for d in _documents(subscriber.messages(RESULT))]


def _statuses(subscriber: Subscriber) -> list[tuple[str, str | None, bool]]:
    messages = subscriber.messages(STATUS)
    return [(d["status"], d.get("reason"), m.retain) for d, m in zip(_documents(messages), messages, strict=True)]


@pytest.mark.parametrize("qos", QOS)
def test_results_arrive_as_documented(broker: Broker, qos: Literal[0, 1]) -> None:
    with Subscriber(broker) as subscriber:
        with _publisher(broker, qos=qos) as publisher:
            _put(publisher, *range(100))
        subscriber.wait_for(lambda messages: len(messages) >= 102, "100 results and two statuses")
        assert [m.topic for m in subscriber.messages()] == [
            "edge/v1/default/pi/status",
            *["edge/v1/default/pi/result/door"] * 100,
            "edge/v1/default/pi/status",
        ]
        assert _numbers(subscriber) == list(range(100))
        message = subscriber.messages(RESULT)[0]
        assert (message.qos, message.retain, message.content_type) == (qos, False, "application/json")
        assert message.user_properties == (("schema", "1"), ("stream", "result"))
        assert message.expiry_s in (59, 60)
        jsonschema.validate(_documents([message])[0], msgspec.json.decode(result_schema()))
    stats = publisher.stats()
    assert (stats.put, stats.sent, stats.queued, stats.dropped, stats.state) == (100, 100, 0, 0, "closed")
    assert stats.acknowledged == (100 if qos else 0)


def test_status_is_retained_before_and_after(broker: Broker) -> None:
    with _publisher(broker) as publisher:
        _online(publisher)
        with Subscriber(broker, "edge/v1/+/+/status") as late:
            late.wait_for(lambda messages: len(messages) == 1, "the retained status")
            assert _statuses(late) == [("online", None, True)]
            assert _documents(late.messages())[0]["versions"] == {"edge_sdk": "0.0"}
    with Subscriber(broker, "edge/v1/+/+/status") as later:
        later.wait_for(lambda messages: len(messages) == 1, "the retained status")
        assert _statuses(later) == [("offline", "shutdown", True)]


_VICTIM = """
import sys, time
from edge_sdk.publishing import MqttPublisher, MqttSettings
from edge_sdk.publishing.mqtt import WINDOW, MqttLink
from tests.device.results import make_encoder
publisher = MqttPublisher(MqttSettings.parse(sys.argv[1], device="pi"), make_encoder())
while publisher.stats().state != "online":
    time.sleep(0.01)
print("online", flush=True)
time.sleep(60)
"""


def test_last_will_of_a_killed_publisher(broker: Broker) -> None:
    root = Path(__file__).parents[2]
    with Subscriber(broker) as subscriber:
        command = [sys.executable, "-c", _VICTIM, broker.url]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"online\n"
            victim.kill()
        subscriber.wait_for(lambda messages: len(messages) == 2, "the last will")
        assert [(s, r) for s, r, _ in _statuses(subscriber)] == [("online", None), ("offline", "lost")]
        online, lost = _documents(subscriber.messages())
        assert lost["boot_id"] == online["boot_id"]
    with Subscriber(broker) as late:
        late.wait_for(lambda messages: len(messages) == 1, "the retained will")
        assert _statuses(late) == [("offline", "lost", True)]


@pytest.mark.parametrize(("user", "password"), [("", None), ("camera", "wrong"), ("stranger", "right")])
def test_wrong_password_is_said_once_and_tried_again(tmp_path: Path, user: str, password: str | None) -> None:
    states: list[tuple[State, str]] = []
    with Broker(tmp_path, users={"camera": "right"}) as broker:
        with _publisher(broker, user=user, password=password, on_state=lambda s, d: states.append((s, d))) as publisher:
            _put(publisher, 1)
            wait_until(lambda: broker.log.count("not authorised") >= 3, "three attempts")
            assert publisher.stats().state == "refused"
            assert "Not authorized (reason code 135)" in publisher.stats().last_error
        assert [s for s, _ in states] == ["refused", "closed"]
        assert "wrong" not in repr(states)
        assert publisher.stats().queued == 1


def test_right_password(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, users={"camera": "right", "reader": "too"}) as broker,
        Subscriber(broker, username="reader", password="too") as subscriber,
        _publisher(broker, user="camera", password="right") as publisher,
    ):
        _put(publisher, 1)
        subscriber.wait_for(lambda messages: len(messages) == 2, "status and result")


def test_a_topic_that_is_not_allowed(tmp_path: Path) -> None:
    states: list[tuple[State, str]] = []
    acl = ["user camera", "topic write edge/v1/default/pi/status"]
    with (
        Broker(tmp_path, users={"camera": "right"}, acl=acl) as broker,
        _publisher(broker, qos=1, user="camera", password="right", on_state=lambda *s: states.append(s)) as publisher,
    ):
        _put(publisher, *range(5))
        _until(publisher, lambda s: s.rejected == 5, "five complaints")
        assert (publisher.stats().acknowledged, publisher.stats().connects) == (0, 1)
        assert [s for s in states if "not take" in s[1]] == [
            ("online", "the broker did not take a message: Not authorized")
        ]


@pytest.mark.parametrize("qos", QOS)
def test_broker_absent_at_start(tmp_path: Path, qos: Literal[0, 1]) -> None:
    states: list[tuple[State, str]] = []
    with Broker(tmp_path, start=False) as broker:
        with _publisher(broker, qos=qos, on_state=lambda *s: states.append(s)) as publisher:
            _put(publisher, *range(5))
            _until(publisher, lambda s: s.last_error == "Connection refused", "the first attempt")
            assert publisher.stats().state == "connecting"
            broker.start()
            _until(publisher, lambda s: s.sent == 5, "what waited")
        assert [s for s, _ in states] == ["connecting", "online", "closed"]


@pytest.mark.parametrize("qos", QOS)
def test_broker_killed_and_restarted_while_results_flow(broker: Broker, qos: Literal[0, 1]) -> None:
    slowest_ns = 0
    stop = threading.Event()

    def produce() -> None:
        nonlocal slowest_ns
        number = 0
        while not stop.wait(0.005):
            started_ns = time.monotonic_ns()
            _put(publisher, number)
            slowest_ns = max(slowest_ns, time.monotonic_ns() - started_ns)
            number += 1

    with Subscriber(broker) as subscriber, _publisher(broker, qos=qos) as publisher:
        producer = threading.Thread(target=produce)
        producer.start()
        try:
            for _ in range(3):
                wanted = publisher.stats().sent + 20
                _until(publisher, lambda s, n=wanted: s.sent >= n, "results before the kill")  # type: ignore[misc]
                broker.kill()
                _until(publisher, lambda s: s.state == "connecting" and s.queued > 20, "the loss of the broker")
                broker.start()
                _online(publisher)
                mark = publisher.stats().put
                subscriber.wait_for(lambda _, n=mark: max(_numbers(subscriber)) > n, "new results")  # type: ignore[misc]
        finally:
            stop.set()
            producer.join()
        assert publisher.stats().connects == 4
        assert slowest_ns < 1_000_000_000  # one attempt to connect, or one wait, would be longer
        if qos == 1:
            _until(publisher, lambda s: s.acknowledged == s.put, "an acknowledgement for every result")


@pytest.mark.parametrize("qos", QOS)
def test_a_frozen_broker_makes_nothing_grow(broker: Broker, qos: Literal[0, 1]) -> None:
    outbox = MemoryOutbox(max_messages=50, max_bytes=500_000)
    links: list[MqttLink] = []
    with _publisher(broker, qos=qos, outbox=outbox, links=links, keepalive_s=60) as publisher:
        _online(publisher)
        broker.freeze()
        [link] = links
        for number in range(8000):  # 8000 * 10 kB: far more than the kernel's buffers hold
            _put(publisher, number, count=100)
            assert len(link._client._out_packet) <= WINDOW
            assert len(link._client._out_messages) <= WINDOW
            assert len(outbox) <= 50
            assert outbox.waiting_bytes <= 500_000
        stats = publisher.stats()
        assert stats.put == 8000
        assert stats.dropped > 1000
        assert stats.sent + stats.dropped + stats.queued >= 8000 - WINDOW
        broker.thaw()
        _until(publisher, lambda s: s.queued == 0 and s.sent + s.dropped == s.put, "the end of the queue")
        assert publisher.stats().connects == 1


def test_a_broker_frozen_for_longer_than_the_keep_alive(broker: Broker) -> None:
    with _publisher(broker, keepalive_s=1) as publisher:
        _online(publisher)
        broker.freeze()
        _until(publisher, lambda s: s.state == "connecting", "the keep-alive to run out")
        _put(publisher, 1)
        broker.thaw()
        _until(publisher, lambda s: s.sent == 1, "the result")


def test_close_with_a_frozen_broker_returns_in_time(broker: Broker) -> None:
    with _publisher(broker, keepalive_s=60) as publisher:
        _online(publisher)
        broker.freeze()
        _put(publisher, *range(500), count=300)
        publisher.close(timeout_s=0.5)
        assert not publisher._thread.is_alive()
        assert publisher.stats().queued > 0
        broker.thaw()
    with Subscriber(broker) as late:
        late.wait_for(lambda _: [s[:2] for s in _statuses(late)][-1:] == [("offline", "lost")], "the last will")


def test_close_with_a_dead_broker_returns_in_time(broker: Broker) -> None:
    with _publisher(broker) as publisher:
        _online(publisher)
        broker.kill()
        _put(publisher, *range(10))
        publisher.close(timeout_s=WAIT_S)
        assert not publisher._thread.is_alive()


@pytest.mark.parametrize("qos", QOS)
def test_a_message_above_the_limit_is_dropped_and_not_tried_for_ever(tmp_path: Path, qos: Literal[0, 1]) -> None:
    with (
        Broker(tmp_path, config=["max_packet_size 2000"]) as broker,
        Subscriber(broker) as subscriber,
        _publisher(broker, qos=qos) as publisher,
    ):
        _put(publisher, 1)
        _put(publisher, 2, count=100)
        _put(publisher, 3)
        subscriber.wait_for(lambda _: 3 in _numbers(subscriber), "the small results")
        assert _numbers(subscriber) == [1, 3]
        stats = publisher.stats()
        assert (stats.too_large, stats.sent, stats.connects, stats.state) == (1, 2, 1, "online")


@pytest.mark.parametrize("qos", QOS)
@pytest.mark.parametrize("room", [0, 1])
def test_the_size_of_a_packet_is_counted_right(tmp_path: Path, qos: Literal[0, 1], room: int) -> None:
    encoder = make_encoder(clock_ns=lambda: 0)
    payload = encoder.encode(make_detections(30, make_frame(1)))
    fixed_header_bytes, topic_bytes, properties_bytes = 3, 2 + len("edge/v1/default/pi/result/door"), 56
    message_id_bytes = 2 if qos else 0
    limit = fixed_header_bytes + topic_bytes + message_id_bytes + properties_bytes + len(payload) - 1 + room
    with (
        Broker(tmp_path, config=[f"max_packet_size {limit}"]) as broker,
        _publisher(broker, qos=qos, encoder=encoder) as publisher,
    ):
        _put(publisher, 1, count=30)
        _until(publisher, lambda s: s.sent + s.too_large == 1, "the decision")
        assert (publisher.stats().sent, publisher.stats().connects) == (room, 1)


CONNACK = b"\x20\x03\x00\x00\x00"


@pytest.mark.parametrize(
    ("answer", "state", "expected"),
    [
        (CONNACK + b"\xe0\x01\x8e", "connecting", "Session taken over; another client calls itself edge-default-pi"),
        (CONNACK + b"\xe0\x01\x8b", "connecting", "Server shutting down"),
        (CONNACK, "connecting", "connection lost"),
        (b"", "connecting", "connection lost"),
        (b"\x20\x03\x00\x84\x00", "refused", "the broker knows no MQTT 5"),
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
        publisher = MqttPublisher(
            settings, make_encoder(), on_state=lambda *s: states.append(s), backoff=Backoff(0.01, 0.02)
        )
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
        with _publisher(broker, qos=1, protocol="3.1.1") as publisher:
            _put(publisher, 1, 2)
        subscriber.wait_for(lambda messages: len(messages) == 4, "results and statuses")
        assert _numbers(subscriber) == [1, 2]
        assert publisher.stats().acknowledged == 2


def _certificates(folder: Path) -> Path:
    """A broker's certificate for localhost, and not for 127.0.0.1; its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test broker")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "ca.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    return path


# paho leaves the socket of a failed handshake to the garbage collector, which says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("host", "trusted", "state", "complaint"),
    [
        ("localhost", True, "online", ""),
        ("127.0.0.1", True, "refused", "IP address mismatch"),
        ("localhost", False, "refused", "certificate verify failed"),
    ],
)
def test_tls(tmp_path: Path, host: str, trusted: bool, state: State, complaint: str) -> None:
    ca_file = _certificates(tmp_path)
    port = free_port()
    config = [f"listener {port} 127.0.0.1", f"certfile {ca_file}", f"keyfile {tmp_path / 'key.pem'}"]
    changes: dict[str, Any] = {"host": host, "port": port, "tls": True, "ca_file": ca_file if trusted else None}
    with (
        Broker(tmp_path, config=config) as broker,
        Subscriber(broker) as subscriber,
        _publisher(broker, **changes) as publisher,
    ):
        _put(publisher, *range(30), count=50)
        _until(publisher, lambda s: s.state == state, state)
        assert complaint in publisher.stats().last_error
        if state == "online":
            subscriber.wait_for(lambda _: _numbers(subscriber) == list(range(30)), "all results")
