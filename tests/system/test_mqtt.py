"""The publisher, and `Publisher` of a program, against a real Mosquitto, with TLS and without."""

import contextlib
import os
import random
import re
import socket
import ssl
import sys
from pathlib import Path
from typing import Any, Literal

import jsonschema
import msgspec
import pytest

from edge_sdk.messages.schema import message_schema
from edge_sdk.publishing.publisher import MqttPublisher
from edge_sdk.publishing.settings import MqttSettings, Secret
from tests.support import subscribers
from tests.support.broker import Broker, Subscriber, TlsBroker, wait_until
from tests.support.certificates import HERE, Authority
from tests.support.connections import put
from tests.support.results import IDENTITY

pytestmark = pytest.mark.system


@pytest.mark.smoke
@pytest.mark.parametrize("qos", subscribers.QOS)
def test_results_arrive_as_documented(broker: Broker, qos: Literal[0, 1]) -> None:
    with Subscriber(broker) as subscriber:
        with subscribers.publishing_to(broker, qos=qos) as (publisher, door):
            put(door, *range(100))
        subscriber.wait_for(
            lambda _: subscribers.statuses(subscriber)[-1:] == [("offline", "shutdown", False)], "the offline message"
        )
        first, *rest = [m.topic.removeprefix("edge/v1/default/pi/") for m in subscriber.messages()]
        assert (first, rest[-1]) == ("status", "status")
        assert rest.count("result/door") == 100
        assert set(rest) <= {"result/door", "status", "state"}
        assert subscribers.numbers(subscriber) == list(range(100))
        message = subscriber.messages(subscribers.RESULT)[0]
        assert (message.qos, message.retain, message.content_type) == (qos, False, "application/json")
        assert message.user_properties == (("schema", "1"), ("stream", "result"), ("seq", "0"))
        assert message.expiry_s in range(1, 61)  # less what it waited
        jsonschema.validate(subscribers.documents([message])[0], msgspec.json.decode(message_schema("result")))
    stats = publisher.stats()
    assert (stats.put, stats.sent, stats.queued, stats.dropped, stats.state) == (100, 100, 0, 0, "closed")
    assert stats.acknowledged == (100 if qos else 0)


@pytest.mark.smoke
def test_last_will_of_a_killed_publisher(broker: Broker, tmp_path: Path) -> None:
    with Subscriber(broker) as subscriber:
        device = subscribers.KillableDevice(broker.port, tmp_path / "outbox")
        device.start()
        subscriber.wait_for(lambda _: bool(subscribers.states(subscriber)), "the state")
        device.kill()
        subscriber.wait_for(lambda _: subscribers.statuses(subscriber)[-1][:2] == ("offline", "lost"), "the last will")
        online, *_, lost = subscribers.documents(subscriber.messages(subscribers.STATUS))
        assert [online[name] for name in ("boot_id", "run_id")] == [lost[name] for name in ("boot_id", "run_id")]
    with Subscriber(broker, "edge/v1/+/+/+") as late:
        late.wait_for(lambda messages: len(messages) == 2, "what is retained")
        assert subscribers.statuses(late) == [("offline", "lost", True)]
        assert [message.retain for message in late.messages(subscribers.STATE)] == [True]


# `Publisher` of a program: kills cost no event.


@pytest.mark.parametrize(
    "seconds", [pytest.param(0.0, marks=pytest.mark.smoke), pytest.param(20.0, marks=pytest.mark.long)]
)
def test_kills_of_broker_and_program_lose_nothing_acknowledged(tmp_path: Path, seconds: float) -> None:
    """`python -m benchmarks.experiments.events kills` does the same for a minute."""
    seed = 5 if not seconds else int(os.environ.get("KILLS_SEED", 0)) or random.randrange(1, 2**32)
    sys.stdout.write(f"KILLS_SEED={seed}\n")
    with (
        Broker(tmp_path, persistence=True, config=subscribers.PERSISTENT) as broker,
        subscribers.Witness(broker) as witness,
    ):
        device = subscribers.KillableDevice(broker.port, tmp_path / "outbox")
        device.start()
        killed = subscribers.kill_at_random(broker, device, witness, seconds, seed)
        device.kill()
        device.start(rate=1.0)  # it brings what the ones before had on disk
        acknowledged = set(device.acknowledged)
        wait_until(lambda: acknowledged <= witness.numbers, "every acknowledged event")
        device.kill()
        assert min(killed) > 0, killed
        assert len(acknowledged) > max(40, 20 * seconds)
        assert not witness.conflicts  # what came twice was the same each time: its number tells


# TLS: who is trusted, what is said of who is not, and that it ends without a restart.


def _refusal(broker: Broker, **changes: Any) -> str:
    with subscribers.publishing_to(broker, **changes) as (publisher, _):
        subscribers.until(publisher, lambda s: s.state == "refused", "the refusal")
        assert publisher.stats().connects == 0
        return publisher.stats().last_error


@pytest.mark.parametrize("path", [None, "/mqtt"])
def test_results_arrive_encrypted(tmp_path: Path, path: str | None) -> None:
    more = [] if path is None else ["protocol websockets"]
    with (
        TlsBroker(tmp_path, more=more) as broker,
        Subscriber(broker) as subscriber,
        subscribers.publishing_to(broker, websocket_path=path, qos=1, **broker.reach) as (publisher, door),
    ):
        put(door, *range(30), count=50)
        subscribers.until(publisher, lambda s: s.acknowledged == 30, "all results")
        subscriber.wait_for(lambda _: subscribers.numbers(subscriber) == list(range(30)), "all results at a subscriber")
        assert "warnings" not in subscribers.latest_state(subscriber)


@pytest.mark.parametrize(
    ("host", "names", "days", "is_known", "expected"),
    [
        ("127.0.0.1", ("localhost",), (-1, 90), True, "of another name: IP address mismatch"),
        ("localhost", ("broker.example",), (-1, 90), True, "of another name: Hostname mismatch"),
        ("localhost", HERE, (-1, 90), False, "none of the system's authorities signed it; give its own, ca_file"),
        ("localhost", HERE, (-9, -1), True, "has expired; renew it at the broker"),
        ("localhost", HERE, (1, 90), True, "is not valid yet; is this device's clock right? It is 2"),
    ],
)
def test_a_broker_that_is_not_to_be_trusted(
    tmp_path: Path, host: str, names: tuple[str, ...], days: tuple[float, float], is_known: bool, expected: str
) -> None:
    authority = Authority(tmp_path)
    with TlsBroker(tmp_path, broker_certificate=authority.issue("broker", names, days=days)) as broker:
        known = authority.file if is_known else None
        assert expected in _refusal(broker, **{**broker.reach, "host": host, "ca_file": known})


def test_a_port_without_tls_and_one_with_it_are_told_from_each_other(tmp_path: Path) -> None:
    said: list[str] = []
    with TlsBroker(tmp_path) as broker:
        with subscribers.publishing_to(broker, port=broker.tls_port, on_state=lambda _, detail: said.append(detail)):
            wait_until(lambda: any("perhaps that port wants TLS" in line for line in said), f"the hint; {said}")
        with subscribers.publishing_to(broker, tls=True, ca_file=broker.authority.file) as (publisher, _):
            subscribers.until(publisher, lambda s: s.last_error.endswith("is it a port for TLS?"), "the reason")


def test_nothing_older_than_tls_1_2_is_spoken(tmp_path: Path) -> None:
    """Mosquitto has no 1.1 any more; a listener of a few lines does."""
    authority = Authority(tmp_path)
    shown = authority.issue("broker", HERE)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.load_cert_chain(*shown)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        settings = MqttSettings(device="pi", host="localhost", port=port, tls=True, ca_file=authority.file)
        publisher = MqttPublisher(settings, IDENTITY)
        with listener.accept()[0] as connection, contextlib.suppress(ssl.SSLError):
            old.wrap_socket(connection, server_side=True).close()
        subscribers.until(publisher, lambda s: "speaks no TLS of 1.2 or newer" in s.last_error, "the refusal")
        publisher.close(2.0)


def test_a_broker_that_wants_a_certificate_gets_one(tmp_path: Path) -> None:
    clients = Authority(tmp_path, "clients")
    issued = clients.issue("default/pi", password="hunter2")
    with (
        TlsBroker(tmp_path, clients_of=clients, more=["use_identity_as_username true"]) as broker,
        Subscriber(broker) as subscriber,
        subscribers.publishing_to(broker, **issued._asdict(), key_password=Secret("hunter2"), **broker.reach) as door,
    ):
        put(door.stream, 1)
        subscriber.wait_for(lambda _: subscribers.numbers(subscriber) == [1], "the result")
        assert "u'default/pi'" in broker.log


@pytest.mark.parametrize("version", ["tlsv1.2", "tlsv1.3"])
@pytest.mark.parametrize(
    ("has_one", "expected"), [(False, "wants a certificate of this device"), (True, "does not take the certificate in")]
)
def test_a_broker_that_wants_another_certificate(tmp_path: Path, version: str, has_one: bool, expected: str) -> None:
    clients, others = Authority(tmp_path, "clients"), Authority(tmp_path, "others")
    ours: dict[str, Any] = others.issue("pi")._asdict() if has_one else {}
    with TlsBroker(tmp_path, clients_of=clients, more=[f"tls_version {version}"]) as broker:
        said: list[str] = []
        with subscribers.publishing_to(broker, on_state=lambda _, detail: said.append(detail), **ours, **broker.reach):
            wait_until(lambda: any(expected in detail for detail in said), f"the reason; {said}; {broker.log}")


def test_a_file_that_is_gone_while_it_runs_is_named(tmp_path: Path) -> None:
    clients = Authority(tmp_path, "clients")
    issued = clients.issue("pi")
    with (
        TlsBroker(tmp_path, clients_of=clients) as broker,
        subscribers.publishing_to(broker, qos=1, **issued._asdict(), **broker.reach) as (publisher, door),
    ):
        subscribers.until(publisher, lambda s: s.state == "online", "the connection")
        key = issued.key_file.read_bytes()
        issued.key_file.unlink()
        broker.restart()
        subscribers.until(publisher, lambda s: s.state == "refused", "the refusal")
        assert f"{issued.key_file}: the private key cannot be read: No such file" in publisher.stats().last_error
        issued.key_file.write_bytes(key)
        put(door, 1)
        subscribers.until(publisher, lambda s: s.acknowledged == 1, "the answer")


def test_a_frozen_broker_does_not_keep_a_handshake_waiting_for_ever(tmp_path: Path) -> None:
    with TlsBroker(tmp_path) as broker:
        broker.freeze()
        with subscribers.publishing_to(broker, **broker.reach) as (publisher, _):
            subscribers.until(publisher, lambda s: "timed out" in s.last_error, "the time-out")
            broker.thaw()
            subscribers.until(publisher, lambda s: s.state == "online", "the connection")


def test_certificates_that_end_soon_are_said_and_taken_back(tmp_path: Path) -> None:
    clients, authority = Authority(tmp_path, "clients"), Authority(tmp_path)
    issued = clients.issue("pi", days=(-1, 9))
    shown = authority.issue("broker", HERE, days=(-1, 20))
    with (
        TlsBroker(tmp_path, broker_certificate=shown, clients_of=clients) as broker,
        Subscriber(broker) as subscriber,
        subscribers.publishing_to(broker, **issued._asdict(), **{**broker.reach, "ca_file": authority.file}),
    ):
        subscriber.wait_for(lambda _: len(subscribers.warnings(subscriber)) == 2, "both warnings")
        ours, theirs = (subscribers.warnings(subscriber)[name] for name in ("client_certificate", "broker_certificate"))
        assert re.search(rf"{issued.cert_file}: this device's certificate ends on .*, in 9 days; renew it", ours)
        assert theirs.startswith("the broker's certificate ends on")
        clients.issue("pi")
        authority.issue("broker", HERE)
        broker.restart()
        subscriber.wait_for(lambda _: not subscribers.warnings(subscriber), "the end of both")
