"""Certificates end: the broker's, the device's, and that of the authority; it is said before, and mended in place."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.support.broker import Subscriber, TlsBroker
from tests.support.certificates import HERE, Authority
from tests.support.subscribers import publishing_to, put, until

pytestmark = pytest.mark.system


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "broker"
    folder.mkdir()
    return folder


def test_a_broker_whose_certificate_was_renewed_is_trusted_without_a_restart(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    authority = Authority(tmp_path)
    shown = authority.issue("broker", HERE, days=(-9, -1))
    with (
        TlsBroker(folder, broker_certificate=shown) as broker,
        publishing_to(broker, qos=1, **{**broker.reach, "ca_file": authority.file}) as (publisher, door),
    ):
        put(door, 1)
        until(publisher, lambda s: s.state == "refused" and "has expired" in s.last_error, "the refusal")
        authority.issue("broker", HERE)
        broker.restart()
        until(publisher, lambda s: s.acknowledged == 1, "the answer to what waited")


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
        subscriber.wait_for(lambda _: len(_warnings(subscriber)) == 2, "both warnings")
        ours, theirs = (_warnings(subscriber)[name] for name in ("client_certificate", "broker_certificate"))
        assert f"{issued.cert_file}: this device's certificate ends on" in ours
        assert "in 9 days; renew it in its place" in ours
        assert theirs.startswith("the broker's certificate ends on")
        clients.issue("pi")
        authority.issue("broker", HERE)
        broker.restart()
        until(publisher, lambda s: s.connects > 1, "the next connection")
        subscriber.wait_for(lambda _: not _warnings(subscriber), "the end of both")


def test_an_authority_that_ends_soon_is_said_while_devices_can_still_get_its_successor(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path, days=(-100, 20)), Authority(tmp_path, "other")
    shown, known = authority.issue("broker", HERE), tmp_path / "known.pem"
    known.write_bytes(authority.file.read_bytes())
    with (
        TlsBroker(_folder(tmp_path), broker_certificate=shown) as broker,
        Subscriber(broker) as subscriber,
        publishing_to(broker, qos=1, **{**broker.reach, "ca_file": known}) as (publisher, _),
    ):
        subscriber.wait_for(lambda _: "authorities" in _warnings(subscriber), "the warning")
        [line] = _warnings(subscriber).values()
        assert line.startswith(f"{known}: the authority authority ca ends on ")
        assert line.endswith("in 20 days; write its successor into this file, beside it, on each device")
        known.write_bytes(other.file.read_bytes())
        other.issue("broker", HERE)
        broker.restart()
        until(publisher, lambda s: s.connects > 1, "the next connection")
        subscriber.wait_for(lambda _: not _warnings(subscriber), "the end of it")


def _warnings(subscriber: Subscriber) -> dict[str, str]:
    messages = subscriber.messages("/state")
    found: dict[str, str] = msgspec.json.decode(messages[-1].payload).get("warnings", {}) if messages else {}
    return found
