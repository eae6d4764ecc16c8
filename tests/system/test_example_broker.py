"""examples/mosquitto by the steps of its README: devices, one that is up to no good, who looks on, Home Assistant."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import PASSWORD, ExampleBroker, Subscriber, example_broker, wait_until
from tests.support.event_device import encoded
from tests.support.requester import running
from tests.support.results import IDENTITY
from tests.support.subscribers import FleetWitness, documents, numbers, publishing_to, put, statuses, until

pytestmark = pytest.mark.system

_EVENTS = 2000  # more than Mosquitto keeps by itself for who is away


def _warnings(subscriber: Subscriber) -> dict[str, str]:
    """Of the latest state."""
    found: dict[str, str] = [{}, *documents(subscriber.messages("/state"))][-1].get("warnings", {})
    return found


@pytest.fixture
def broker() -> Iterator[ExampleBroker]:
    with example_broker() as found:
        yield found


@pytest.mark.long
def test_each_device_writes_below_its_own_prefix_and_nowhere_else(broker: ExampleBroker) -> None:
    reach = {"host": "localhost", "port": broker.tls_port, "tls": True, "ca_file": broker.ca_file}
    reach["password"] = PASSWORD
    for name in ("default/pi", "other/pi"):
        broker.add_user(name)
    broker.restart()
    with (
        Subscriber(broker, "edge/v1/#", username="watcher", password=PASSWORD) as subscriber,
        publishing_to(broker, qos=1, user="default/pi", **reach) as (honest, door),
    ):
        put(door, 1)
        until(honest, lambda s: s.acknowledged == 1, "what is allowed")
        said: list[str] = []
        # With another device's credential the broker refuses the will already, so that there is no connection.
        with publishing_to(broker, qos=1, user="other/pi", on_state=lambda _, d: said.append(d), **reach) as (
            rogue,
            other_door,
        ):
            put(other_door, 99)
            wait_until(lambda: any("ot authori" in d for d in said), f"the refusal; {rogue.stats()}; {broker.log}")
        with publishing_to(broker, qos=1, user="other/pi", site="other", **reach) as (second, gate):
            put(gate, 3)
            until(second, lambda s: s.acknowledged == 1, "what is allowed to a second device")
        put(door, 2)
        until(honest, lambda s: s.acknowledged == 2, "the honest one is not disturbed")
        assert honest.stats().connects == 1  # the other one's client id did not push it out
        subscriber.wait_for(lambda _: numbers(subscriber) == [1, 3, 2], "results of the honest ones and no others")
        assert [m.topic for m in subscriber.messages("/result/door")][1] == "edge/v1/other/pi/result/door"
        assert [status for status, *_ in statuses(subscriber)] == ["online", "online", "offline"]
        assert "u'default/pi'" in broker.log


def test_events_wait_at_the_broker_for_who_is_away(broker: ExampleBroker) -> None:
    broker.add_user("default/pi")
    broker.restart()
    with FleetWitness(broker, username="watcher", password=PASSWORD):
        pass  # from here on it has a session there
    with publishing_to(broker, user="default/pi", password=PASSWORD) as (publisher, door):
        given = {door.put_event(lambda seq: encoded(IDENTITY, seq)) for _ in range(_EVENTS)}
        until(publisher, lambda s: s.events.delivered == _EVENTS, "the broker to have them")
    broker.restart()
    with FleetWitness(broker, username="watcher", password=PASSWORD) as witness:
        wait_until(lambda: {seq for _, seq in witness.events} == given, "all of them")


def test_the_broker_reads_its_files_as_its_own_user(broker: ExampleBroker) -> None:
    key = broker.ca_file.parents[1] / "certs" / "broker.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    owner = Path(f"/proc/{broker.pid}").stat().st_uid
    assert owner == key.stat().st_uid != 0
    assert "Error" not in broker.log


def test_the_readmes_device_connects_and_home_assistant_reads_and_asks_it(
    broker: ExampleBroker, cell_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "mqtt.password").write_text(PASSWORD, encoding="utf-8")
    (tmp_path / "mqtt.password").chmod(0o600)
    (tmp_path / "ca.pem").write_bytes(broker.ca_file.read_bytes())
    config = tmp_path / "config.toml"
    pipeline = f'[[pipelines]]\nname = "gate"\nsource = "pattern:320x240@20"\nbundle = "{cell_bundle}"\n'
    config.write_text(
        f'version = 1\n{broker.toml_of_device()}\n[commands]\nallow = ["report_state"]\n[home_assistant]\n{pipeline}'
        "latency_ms = 5000\ntune = false\n",
        encoding="utf-8",
    )
    with running(config) as lines, Subscriber(broker, username="watcher", password=PASSWORD) as watcher:
        watcher.wait_for(lambda _: bool(watcher.messages("/result/gate")), f"results; {lines}; {broker.log}")
        watcher.wait_for(lambda _: "messages_refused" in _warnings(watcher), f"the warning; {lines}")
        said = _warnings(watcher)["messages_refused"]
        assert re.fullmatch(
            r"the broker did not take a message on homeassistant/device/\S+/config: Not authorized; its ACL must let "
            r"this device write there",
            said,
        )
        assert len([line for line in lines if said in line]) == 1
    broker.take_home_assistant()
    with running(config) as lines, Subscriber(broker, username="homeassistant", password=PASSWORD) as home:
        home.wait_for(lambda _: any(m.topic.startswith("homeassistant/device/") for m in home.messages()), "discovery")
        home.publish("edge/v1/berlin/pi-01/cmd", b'{"command": "report_state"}')
        home.wait_for(lambda _: bool(home.messages("/res")), f"an answer; {lines}")
