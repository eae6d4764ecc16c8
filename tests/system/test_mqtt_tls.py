"""TLS to a real broker: who is trusted, what is said of who is not, and that it ends without a restart."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.publishing.publisher import MqttPublisher
from edge_sdk.publishing.settings import MqttSettings, Secret
from tests.support.broker import WAIT_S, Broker, Subscriber, TlsBroker, wait_until
from tests.support.certificates import HERE, Authority
from tests.support.connections import put
from tests.support.results import IDENTITY
from tests.support.subscribers import latest_state, numbers, publishing_to, until, warnings

pytestmark = pytest.mark.system


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "broker"
    folder.mkdir()
    return folder


def _refusal(broker: Broker, **changes: Any) -> str:
    with publishing_to(broker, **changes) as (publisher, door):
        put(door, 1)
        until(publisher, lambda s: s.state != "connecting" or bool(s.last_error), "an answer")
        until(publisher, lambda s: s.state == "refused", "the refusal")
        assert publisher.stats().connects == 0
        return publisher.stats().last_error


@pytest.mark.parametrize("path", [None, "/mqtt"])
def test_results_arrive_encrypted(tmp_path: Path, path: str | None) -> None:
    more = [] if path is None else ["protocol websockets"]
    with (
        TlsBroker(_folder(tmp_path), more=more) as broker,
        Subscriber(broker) as subscriber,
        publishing_to(broker, websocket_path=path, qos=1, **broker.reach) as (publisher, door),
    ):
        put(door, *range(30), count=50)
        until(publisher, lambda s: s.acknowledged == 30, "all results")
        subscriber.wait_for(lambda _: numbers(subscriber) == list(range(30)), "all results at a subscriber")
        assert "warnings" not in latest_state(subscriber)


@pytest.mark.parametrize(
    ("host", "names", "days", "is_known", "expected"),
    [
        ("127.0.0.1", ("localhost",), (-1, 90), True, "of another name: IP address mismatch"),
        ("localhost", ("broker.example",), (-1, 90), True, "of another name: Hostname mismatch"),
        ("localhost", HERE, (-1, 90), False, "by none of the system's authorities; give its own, ca_file"),
        ("localhost", HERE, (-9, -1), True, "has expired; renew it at the broker"),
        ("localhost", HERE, (1, 90), True, "is not valid yet; is this device's clock right? It is 2"),
    ],
)
def test_a_broker_that_is_not_to_be_trusted(
    tmp_path: Path, host: str, names: tuple[str, ...], days: tuple[float, float], is_known: bool, expected: str
) -> None:
    authority = Authority(tmp_path)
    with TlsBroker(_folder(tmp_path), broker_certificate=authority.issue("broker", names, days=days)) as broker:
        known = authority.file if is_known else None
        assert expected in _refusal(broker, **{**broker.reach, "host": host, "ca_file": known})


def test_a_port_without_tls_and_one_with_it_are_told_from_each_other(tmp_path: Path) -> None:
    said: list[str] = []
    with TlsBroker(_folder(tmp_path)) as broker:
        with publishing_to(broker, port=broker.tls_port, on_state=lambda _, detail: said.append(detail)):
            wait_until(lambda: any("perhaps that port wants TLS" in line for line in said), f"the hint; {said}")
        with publishing_to(broker, tls=True, ca_file=broker.authority.file) as (publisher, _):
            until(publisher, lambda s: s.last_error.endswith("is it a port for TLS?"), "the reason")


def test_nothing_older_than_tls_1_2_is_spoken(tmp_path: Path) -> None:
    """Mosquitto has no 1.1 any more; a listener of a few lines does."""
    authority = Authority(tmp_path)
    shown = authority.issue("broker", HERE)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.load_cert_chain(*shown)

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(ssl.SSLError):
            old.wrap_socket(connection, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        port = listener.getsockname()[1]
        settings = MqttSettings(device="pi", host="localhost", port=port, tls=True, ca_file=authority.file)
        publisher = MqttPublisher(settings, IDENTITY)
        until(publisher, lambda s: "the broker speaks no TLS of 1.2 or newer" in s.last_error, "the refusal")
        publisher.close(2.0)
        thread.join(WAIT_S)


def test_a_broker_that_wants_a_certificate_gets_one(tmp_path: Path) -> None:
    clients = Authority(tmp_path, "clients")
    issued = clients.issue("default/pi", password="hunter2")
    with (
        TlsBroker(_folder(tmp_path), clients_of=clients, more=["use_identity_as_username true"]) as broker,
        Subscriber(broker) as subscriber,
        publishing_to(broker, qos=1, **issued._asdict(), key_password=Secret("hunter2"), **broker.reach) as (
            publisher,
            door,
        ),
    ):
        put(door, 1)
        until(publisher, lambda s: s.acknowledged == 1, "the answer")
        subscriber.wait_for(lambda _: numbers(subscriber) == [1], "the result")
        assert "u'default/pi'" in broker.log


@pytest.mark.parametrize("version", ["tlsv1.2", "tlsv1.3"])
@pytest.mark.parametrize(
    ("has_one", "expected"),
    [(False, "wants a certificate of this device"), (True, "does not take the certificate in")],
)
def test_a_broker_that_wants_another_certificate(tmp_path: Path, version: str, has_one: bool, expected: str) -> None:
    clients, others = Authority(tmp_path, "clients"), Authority(tmp_path, "others")
    ours: dict[str, Any] = others.issue("pi")._asdict() if has_one else {}
    with TlsBroker(_folder(tmp_path), clients_of=clients, more=[f"tls_version {version}"]) as broker:
        said: list[str] = []
        with publishing_to(broker, on_state=lambda _, detail: said.append(detail), **ours, **broker.reach):
            wait_until(lambda: any(expected in detail for detail in said), f"the reason; {said}; {broker.log}")


def test_a_file_that_is_gone_while_it_runs_is_named(tmp_path: Path) -> None:
    clients = Authority(tmp_path, "clients")
    issued = clients.issue("pi")
    with (
        TlsBroker(_folder(tmp_path), clients_of=clients) as broker,
        publishing_to(broker, qos=1, **issued._asdict(), **broker.reach) as (publisher, door),
    ):
        until(publisher, lambda s: s.state == "online", "the connection")
        key = issued.key_file.read_bytes()
        issued.key_file.unlink()
        broker.restart()
        until(publisher, lambda s: s.state == "refused", "the refusal")
        assert f"{issued.key_file}: the private key cannot be read: No such file" in publisher.stats().last_error
        issued.key_file.write_bytes(key)
        put(door, 1)
        until(publisher, lambda s: s.acknowledged == 1, "the answer")


def test_a_frozen_broker_does_not_keep_a_handshake_waiting_for_ever(tmp_path: Path) -> None:
    with TlsBroker(_folder(tmp_path)) as broker:
        broker.freeze()
        with publishing_to(broker, **broker.reach) as (publisher, _):
            until(publisher, lambda s: "timed out" in s.last_error, "the time-out")
            broker.thaw()
            until(publisher, lambda s: s.state == "online", "the connection")


def test_certificates_that_end_soon_are_said_and_taken_back(tmp_path: Path) -> None:
    clients, authority = Authority(tmp_path, "clients"), Authority(tmp_path)
    issued = clients.issue("pi", days=(-1, 9))
    shown = authority.issue("broker", HERE, days=(-1, 20))
    with (
        TlsBroker(_folder(tmp_path), broker_certificate=shown, clients_of=clients) as broker,
        Subscriber(broker) as subscriber,
        publishing_to(broker, qos=1, **issued._asdict(), **{**broker.reach, "ca_file": authority.file}) as (
            publisher,
            _,
        ),
    ):
        subscriber.wait_for(lambda _: len(warnings(subscriber)) == 2, "both warnings")
        ours, theirs = (warnings(subscriber)[name] for name in ("client_certificate", "broker_certificate"))
        assert f"{issued.cert_file}: this device's certificate ends on" in ours
        assert "in 9 days; renew it in its place" in ours
        assert theirs.startswith("the broker's certificate ends on")
        clients.issue("pi")
        authority.issue("broker", HERE)
        broker.restart()
        until(publisher, lambda s: s.connects > 1, "the next connection")
        subscriber.wait_for(lambda _: not warnings(subscriber), "the end of both")
