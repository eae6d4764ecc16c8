"""The publisher, and `Publisher` of a program, against a real Mosquitto, read by a subscriber of its own."""

from __future__ import annotations

import os
import random
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import jsonschema
import msgspec
import pytest

from edge_sdk.core.protocols import Event
from edge_sdk.messages.schema import Channel, Running, SourceState, TelemetryMessage, message_schema
from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.connections import put
from tests.support.results import IDENTITY
from tests.support.subscribers import (
    PERSISTENT,
    QOS,
    RESULT,
    STATE,
    STATUS,
    KillableDevice,
    Witness,
    documents,
    kill_at_random,
    latest_state,
    numbers,
    publishing_to,
    states,
    statuses,
    wait_online,
)

pytestmark = pytest.mark.system

NOW = datetime(2026, 3, 2, 9, 15, 4, tzinfo=timezone.utc)


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    folder = tmp_path / "outbox"
    folder.mkdir()
    return folder


@pytest.mark.smoke
@pytest.mark.parametrize("qos", QOS)
def test_results_arrive_as_documented(broker: Broker, qos: Literal[0, 1]) -> None:
    with Subscriber(broker) as subscriber:
        with publishing_to(broker, qos=qos) as (publisher, door):
            put(door, *range(100))
        subscriber.wait_for(lambda _: statuses(subscriber)[-1:] == [("offline", "shutdown", False)], "the goodbye")
        first, *rest = [m.topic.removeprefix("edge/v1/default/pi/") for m in subscriber.messages()]
        assert (first, rest[-1]) == ("status", "status")
        assert rest.count("result/door") == 100
        assert set(rest) <= {"result/door", "status", "state"}
        assert numbers(subscriber) == list(range(100))
        message = subscriber.messages(RESULT)[0]
        assert (message.qos, message.retain, message.content_type) == (qos, False, "application/json")
        assert message.user_properties == (("schema", "1"), ("stream", "result"), ("seq", "0"))
        assert message.expiry_s in range(1, 61)  # less what it waited
        jsonschema.validate(documents([message])[0], msgspec.json.decode(message_schema("result")))
    stats = publisher.stats()
    assert (stats.put, stats.sent, stats.queued, stats.dropped, stats.state) == (100, 100, 0, 0, "closed")
    assert stats.acknowledged == (100 if qos else 0)


def test_what_a_device_says_keeps_to_its_schemas(broker: Broker) -> None:
    with Subscriber(broker) as subscriber:
        with publishing_to(broker) as (publisher, door):
            wait_online(publisher)
            with Subscriber(broker, "edge/v1/+/+/status") as late:
                late.wait_for(lambda messages: len(messages) == 1, "the retained status")
                assert statuses(late) == [("online", None, True)]
                assert documents(late.messages())[0]["versions"] == {"edge_sdk": "0.0"}
            door.report_source(SourceState(status="lost", trouble="connection refused", since=NOW))
            door.report_running(Running(variant="int8", every=1, rung=0, rungs=1, reason="start"))
            door.warn("hung", "a run came to no end")
            publisher.warn("disk", "12 MB are free")
            subscriber.wait_for(lambda _: "warnings" in latest_state(subscriber), "the state")
            who = msgspec.structs.asdict(IDENTITY)
            publisher.telemetry(TelemetryMessage(**who, at=NOW, throttled=[], open_files=41))
            subscriber.wait_for(lambda _: bool(subscriber.messages("/telemetry")), "the telemetry")
        subscriber.wait_for(lambda _: statuses(subscriber)[-1][0] == "offline", "the goodbye")
        assert documents(subscriber.messages("/state"))[-1]["warnings"] == {"disk": "12 MB are free"}
        for name in ("status", "state", "telemetry"):
            for message in subscriber.messages(f"/{name}"):
                jsonschema.validate(documents([message])[0], msgspec.json.decode(message_schema(name)))
                assert (message.content_type, message.retain) == ("application/json", False)
                assert message.user_properties == (("schema", "1"), ("stream", name))
                assert message.qos == (0 if name == "telemetry" else 1)
                assert message.expiry_s in (range(1, 61) if name == "telemetry" else [None])
        [health] = documents(subscriber.messages("/telemetry"))
        assert (health["open_files"], health["throttled"]) == (41, [])
    with Subscriber(broker) as late:
        late.wait_for(lambda messages: len(messages) == 2, "what is retained")
        assert {m.topic for m in late.messages()} == {f"edge/v1/default/pi/{name}" for name in ("status", "state")}
        assert statuses(late) == [("offline", "shutdown", True)]


@pytest.mark.smoke
def test_last_will_of_a_killed_publisher(broker: Broker, outbox: Path) -> None:
    with Subscriber(broker) as subscriber:
        device = KillableDevice(broker.port, outbox)
        device.start()
        subscriber.wait_for(lambda _: bool(states(subscriber)), "the state")
        device.kill()
        subscriber.wait_for(lambda _: statuses(subscriber)[-1][:2] == ("offline", "lost"), "the last will")
        online, *_, lost = documents(subscriber.messages(STATUS))
        assert online["status"] == "online"
        assert lost["boot_id"] == online["boot_id"]
        assert lost["run_id"] == online["run_id"]
    with Subscriber(broker, "edge/v1/+/+/+") as late:
        late.wait_for(lambda messages: len(messages) == 2, "what is retained")
        assert statuses(late) == [("offline", "lost", True)]
        [message] = late.messages(STATE)
        assert message.retain


EVENT, SNAPSHOT = "/event/door", "/snapshot/door"
JPEG = b"\xff\xd8" + bytes(30_000)


def test_all_kinds_arrive_with_what_mqtt_3_can_say(broker: Broker) -> None:
    """What MQTT 5 says of each is looked at where a whole run publishes them."""
    channels = {"events": Channel(qos=1, expiry_s=111), "snapshots": Channel(qos=0, expiry_s=222)}
    with Subscriber(broker) as subscriber:
        with publishing_to(broker, protocol="3.1.1", **channels) as (_, door):
            put(door, 41)
            door.put(Event(kind="a"))
            door.put_snapshot(JPEG, 41)
            subscriber.wait_for(lambda _: all(subscriber.messages(kind) for kind in (RESULT, EVENT, SNAPSHOT)), "all")
        [event], [picture] = subscriber.messages(EVENT), subscriber.messages(SNAPSHOT)
    assert (event.qos, event.retain, picture.qos, picture.retain) == (1, False, 0, False)
    assert picture.payload == JPEG
    assert (event.user_properties, picture.content_type, event.expiry_s) == ((), None, None)


# `Publisher` of a program: kills cost no event.


@pytest.mark.parametrize(
    "seconds", [pytest.param(0.0, marks=pytest.mark.smoke), pytest.param(20.0, marks=pytest.mark.long)]
)
def test_kills_of_broker_and_program_lose_nothing_acknowledged(tmp_path: Path, outbox: Path, seconds: float) -> None:
    """`python -m benchmarks.experiments.events kills` does the same for a minute."""
    seed = 5 if not seconds else int(os.environ.get("KILLS_SEED", 0)) or random.randrange(1, 2**32)
    sys.stdout.write(f"KILLS_SEED={seed}\n")
    with Broker(tmp_path, persistence=True, config=PERSISTENT) as broker, Witness(broker) as witness:
        device = KillableDevice(broker.port, outbox)
        device.start()
        killed = kill_at_random(broker, device, witness, seconds, seed)
        device.kill()
        device.start(rate=1.0)  # it brings what the ones before had on disk
        acknowledged = set(device.acknowledged)
        wait_until(lambda: acknowledged <= witness.numbers, "every acknowledged event")
        device.kill()
        assert min(killed) > 0, killed
        assert len(acknowledged) > max(40, 20 * seconds)
        assert not witness.conflicts  # what came twice was the same each time: its number tells
