"""TLS to a real broker: who is trusted, who is not, what is said of it, and that it ends without a restart."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.publishing import MqttPublisher, MqttSettings, Secret, State
from tests.support.broker import WAIT_S, Broker, Subscriber, TlsBroker, wait_until
from tests.support.certificates import HERE, Authority
from tests.support.results import IDENTITY
from tests.support.subscribers import latest_state, numbers, publishing_to, put, until

pytestmark = pytest.mark.system


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "broker"
    folder.mkdir()
    return folder


def _refusal(broker: Broker, **changes: Any) -> str:
    """What is said where there shall be no connection."""
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
    ("host", "names", "days", "is_trusted", "expected"),
    [
        ("127.0.0.1", ("localhost",), (-1, 90), True, "of another name: IP address mismatch"),
        ("localhost", ("broker.example",), (-1, 90), True, "of another name: Hostname mismatch"),
        ("localhost", (), (-1, 90), True, "of another name: Hostname mismatch"),
        ("localhost", HERE, (-1, 90), False, "is not trusted (unable to get local issuer certificate): by none of"),
        ("localhost", HERE, (-9, -1), True, "the broker's certificate, or its authority's, has expired; renew it"),
        ("localhost", HERE, (1, 90), True, "is not valid yet; is this device's clock right? It is 2"),
    ],
)
def test_a_broker_that_is_not_to_be_trusted(
    tmp_path: Path, host: str, names: tuple[str, ...], days: tuple[float, float], is_trusted: bool, expected: str
) -> None:
    folder = _folder(tmp_path)
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    shown = authority.issue("broker", names, days=days)
    with TlsBroker(folder, broker_certificate=shown) as broker:
        known = authority if is_trusted else other
        assert expected in _refusal(broker, **{**broker.reach, "host": host, "ca_file": known.file})


def test_the_systems_authorities_do_not_know_it(tmp_path: Path) -> None:
    with TlsBroker(_folder(tmp_path)) as broker:
        assert "by none of the system's authorities; give its own, ca_file" in _refusal(
            broker, **{**broker.reach, "ca_file": None}
        )


def test_a_broker_without_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with (
        Broker(_folder(tmp_path)) as broker,
        publishing_to(broker, tls=True, ca_file=authority.file) as (publisher, _),
    ):
        until(publisher, lambda s: s.last_error.endswith("is it a port for TLS?"), "the reason")


def test_an_http_server_is_no_broker_with_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        settings = MqttSettings(
            device="pi", host="localhost", port=listener.getsockname()[1], tls=True, ca_file=authority.file
        )
        publisher = MqttPublisher(settings, IDENTITY)
        until(publisher, lambda s: s.last_error.startswith("what answers there speaks no TLS"), "the reason")
        publisher.close(2.0)
        thread.join(WAIT_S)


def test_nothing_older_than_tls_1_2_is_spoken(tmp_path: Path) -> None:
    """Mosquitto has no 1.1 any more; a listener of a few lines does."""
    authority = Authority(tmp_path)
    shown = authority.issue("broker", HERE)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.load_cert_chain(*shown)
    complaints: list[str] = []

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                old.wrap_socket(connection, server_side=True).close()
            except ssl.SSLError as cause:
                complaints.append(str(cause))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        port = listener.getsockname()[1]
        settings = MqttSettings(device="pi", host="localhost", port=port, tls=True, ca_file=authority.file)
        publisher = MqttPublisher(settings, IDENTITY)
        wait_until(lambda: publisher.stats().state == "refused", f"the refusal; {publisher.stats()}")
        publisher.close(2.0)
        thread.join(WAIT_S)
    assert "the broker speaks no TLS of 1.2 or newer" in publisher.stats().last_error
    assert complaints


def test_a_broker_that_wants_a_certificate_gets_one(tmp_path: Path) -> None:
    clients = Authority(tmp_path, "clients")
    issued = clients.issue("default/pi", password="hunter2")
    with (
        TlsBroker(_folder(tmp_path), clients_of=clients, more=["use_identity_as_username true"]) as broker,
        Subscriber(broker) as subscriber,
        publishing_to(
            broker,
            qos=1,
            cert_file=issued.cert_file,
            key_file=issued.key_file,
            key_password=Secret("hunter2"),
            **broker.reach,
        ) as (publisher, door),
    ):
        put(door, 1)
        until(publisher, lambda s: s.acknowledged == 1, "the answer")
        subscriber.wait_for(lambda _: numbers(subscriber) == [1], "the result")
        assert "u'default/pi'" in broker.log


@pytest.mark.parametrize("version", ["tlsv1.2", "tlsv1.3"])
@pytest.mark.parametrize("kind", ["none", "of another authority", "expired"])
def test_a_broker_that_wants_another_certificate(tmp_path: Path, version: str, kind: str) -> None:
    clients, others = Authority(tmp_path, "clients"), Authority(tmp_path, "others")
    ours: dict[str, Any] = {}
    if kind != "none":
        authority, days = (others, (-1.0, 9.0)) if kind != "expired" else (clients, (-9.0, -1.0))
        ours = authority.issue("pi", days=days)._asdict()
    more = [f"tls_version {version}"]
    with TlsBroker(_folder(tmp_path), clients_of=clients, more=more) as broker:
        said: list[str] = []
        with publishing_to(broker, on_state=lambda _, detail: said.append(detail), **ours, **broker.reach):
            expected = "wants a certificate of this device" if kind == "none" else "does not take the certificate in"
            wait_until(lambda: any(expected in detail for detail in said), f"the reason; {said}; {broker.log}")


def test_a_certificate_that_was_renewed_is_taken_without_a_restart(tmp_path: Path) -> None:
    clients = Authority(tmp_path, "clients")
    issued = clients.issue("pi", days=(-9, -1))
    with (
        TlsBroker(_folder(tmp_path), clients_of=clients) as broker,
        publishing_to(broker, qos=1, **issued._asdict(), **broker.reach) as (publisher, door),
    ):
        put(door, 1)
        until(publisher, lambda s: "does not take" in s.last_error or s.state == "refused", "the refusal")
        clients.issue("pi")
        until(publisher, lambda s: s.acknowledged == 1, "the answer to what waited")


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
        assert f"{issued.key_file}: cannot be read: No such file" in publisher.stats().last_error
        issued.key_file.write_bytes(key)
        put(door, 1)
        until(publisher, lambda s: s.acknowledged == 1, "the answer")


def test_a_program_out_of_descriptors_says_so_and_connects_when_it_has_some(tmp_path: Path) -> None:
    said: list[tuple[State, str]] = []
    with TlsBroker(_folder(tmp_path)) as broker:
        broker.stop()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with publishing_to(broker, qos=1, on_state=lambda *s: said.append(s), **broker.reach) as (publisher, door):
            taken: list[int] = []
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))

                def has_reason() -> bool:
                    with contextlib.suppress(OSError):  # once more: an attempt that ends gives its descriptor back
                        while True:
                            taken.append(os.open(os.devnull, os.O_RDONLY))
                    return any("Too many open files; let this" in detail for _, detail in said)

                wait_until(has_reason, "the reason")
            finally:
                for descriptor in taken:
                    os.close(descriptor)
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            broker.start()
            put(door, 1)
            until(publisher, lambda s: s.acknowledged == 1, "the answer")
    assert "refused" not in [state for state, _ in said]


def test_a_frozen_broker_does_not_keep_a_handshake_waiting_for_ever(tmp_path: Path) -> None:
    with TlsBroker(_folder(tmp_path)) as broker:
        broker.freeze()
        began = time.monotonic()
        with publishing_to(broker, **broker.reach) as (publisher, _):
            until(publisher, lambda s: "timed out" in s.last_error, "the time-out")
            assert time.monotonic() > began
            broker.thaw()
            until(publisher, lambda s: s.state == "online", "the connection")


def test_an_authority_that_has_ended_is_not_blamed_on_the_broker(tmp_path: Path) -> None:
    ended, good = Authority(tmp_path, days=(-100, -2)), Authority(tmp_path, "good")
    with TlsBroker(_folder(tmp_path), broker_certificate=ended.issue("broker", HERE)) as broker:
        said = _refusal(broker, **{**broker.reach, "ca_file": ended.file})
        assert said.startswith(f"{ended.file}: the authority authority ca expired on ")
        assert said.endswith("; write its successor into this file, beside it, on each device")
        ended.file.write_bytes(ended.file.read_bytes() + good.file.read_bytes())
        said = _refusal(broker, **{**broker.reach, "ca_file": ended.file})
        assert "on each device; or the broker's certificate, or its authority's, has expired; renew it" in said
