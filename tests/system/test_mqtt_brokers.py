"""The publisher and what brokers may answer: refusals, rubbish, MQTT 3.1.1, TLS."""

from __future__ import annotations

import datetime
import socket
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edge_sdk.publishing import (
    Backoff,
    MqttPublisher,
    MqttSettings,
    State,
)
from tests.device.results import IDENTITY
from tests.system.broker import WAIT_S, Broker, Subscriber, free_port, wait_until
from tests.system.publishers import (
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
            "Session taken over: another program has the same site and device, give each its own --device",
        ),
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
        subscriber.wait_for(lambda messages: len(messages) == 5, "results, statuses and a state")
        assert numbers(subscriber) == [1, 2]
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
        publishing_to(broker, **changes) as (publisher, door),
    ):
        put(door, *range(30), count=50)
        until(publisher, lambda s: s.state == state, state)
        assert complaint in publisher.stats().last_error
        if state == "online":
            subscriber.wait_for(lambda _: numbers(subscriber) == list(range(30)), "all results")
