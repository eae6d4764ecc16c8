"""The publisher against a real Mosquitto, read by a subscriber of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import jsonschema
import msgspec
import pytest

from edge_sdk.publishing import (
    Running,
    SourceState,
    State,
    TelemetryMessage,
    message_schema,
)
from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.results import IDENTITY, make_encoder
from tests.support.subscribers import (
    QOS,
    RESULT,
    STATE,
    STATUS,
    documents,
    latest_state,
    numbers,
    publishing_to,
    put,
    states,
    statuses,
    until,
    wait_online,
)

pytestmark = [pytest.mark.system, pytest.mark.smoke]

NOW = datetime(2026, 3, 2, 9, 15, 4, tzinfo=timezone.utc)


def _health(open_files: int) -> TelemetryMessage:
    who = msgspec.structs.asdict(IDENTITY)
    return TelemetryMessage(**who, at=NOW, throttled=[], open_files=open_files)


def _open_files(subscriber: Subscriber) -> list[int]:
    return [d["open_files"] for d in documents(subscriber.messages("/telemetry"))]


def _cameras(subscriber: Subscriber) -> list[str]:
    """Of the latest status."""
    return list(documents(subscriber.messages(STATUS))[-1]["cameras"])


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
        assert message.expiry_s in (59, 60)
        jsonschema.validate(documents([message])[0], msgspec.json.decode(message_schema("result")))
    stats = publisher.stats()
    assert (stats.put, stats.sent, stats.queued, stats.dropped, stats.state) == (100, 100, 0, 0, "closed")
    assert stats.acknowledged == (100 if qos else 0)


def test_status_is_retained_before_and_after(broker: Broker) -> None:
    with publishing_to(broker) as (publisher, _door):
        wait_online(publisher)
        with Subscriber(broker, "edge/v1/+/+/status") as late:
            late.wait_for(lambda messages: len(messages) == 1, "the retained status")
            assert statuses(late) == [("online", None, True)]
            assert documents(late.messages())[0]["versions"] == {"edge_sdk": "0.0"}
    with Subscriber(broker, "edge/v1/+/+/status") as later:
        later.wait_for(lambda messages: len(messages) == 1, "the retained status")
        assert statuses(later) == [("offline", "shutdown", True)]


_VICTIM = """
import sys, time
from edge_sdk.publishing import Identity, MqttPublisher, MqttSettings
from tests.support.results import IDENTITY, make_encoder
publisher = MqttPublisher(MqttSettings.parse(sys.argv[1], device="pi"), IDENTITY)
for camera in ("door", "gate"):
    publisher.stream(camera, make_encoder()).warn("hung", f"of the {camera}")
while publisher.stats().state != "online":
    time.sleep(0.01)
print("online", flush=True)
time.sleep(60)
"""


def test_what_a_device_says_keeps_to_its_schemas(broker: Broker) -> None:
    with Subscriber(broker) as subscriber:
        with publishing_to(broker) as (publisher, door):
            wait_online(publisher)
            door.source(SourceState(status="lost", trouble="connection refused", since=NOW))
            door.announce(Running(variant="int8", every=1, rung=0, rungs=1, reason="start"))
            door.warn("hung", "a run came to no end")
            publisher.warn("disk", "12 MB are free")
            subscriber.wait_for(lambda _: "warnings" in latest_state(subscriber), "the state")
            publisher.telemetry(_health(41))
            subscriber.wait_for(lambda _: bool(subscriber.messages("/telemetry")), "the telemetry")
        subscriber.wait_for(lambda _: statuses(subscriber)[-1][0] == "offline", "the goodbye")
        assert documents(subscriber.messages("/state"))[-1]["warnings"] == {"disk": "12 MB are free"}
        for name in ("status", "state", "telemetry"):
            for message in subscriber.messages(f"/{name}"):
                jsonschema.validate(documents([message])[0], msgspec.json.decode(message_schema(name)))
                assert (message.content_type, message.retain) == ("application/json", False)
                assert message.user_properties == (("schema", "1"), ("stream", name))
                assert (message.qos, message.expiry_s) == (0, 60) if name == "telemetry" else (1, None)
        [health] = documents(subscriber.messages("/telemetry"))
        assert (health["open_files"], health["throttled"]) == (41, [])
    with Subscriber(broker) as late:
        late.wait_for(lambda messages: len(messages) == 2, "what is retained")
        assert {m.topic for m in late.messages()} == {f"edge/v1/default/pi/{name}" for name in ("status", "state")}


def test_of_telemetry_only_the_newest_waits_for_the_broker(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, start=False) as broker,
        publishing_to(broker) as (publisher, door),
    ):
        until(publisher, lambda s: s.last_error == "Connection refused", "the first attempt")
        for number in range(100):
            publisher.telemetry(_health(number))
        broker.start()
        with Subscriber(broker, "edge/v1/default/pi/#") as subscriber:
            wait_online(publisher)
            put(door, 1)
            subscriber.wait_for(lambda _: numbers(subscriber) == [1], "the result")
            publisher.telemetry(_health(100))
            subscriber.wait_for(lambda _: _open_files(subscriber)[-1:] == [100], "the telemetry")
            assert _open_files(subscriber) in ([99, 100], [100])  # the subscriber came first or second


def test_two_cameras_share_one_connection(broker: Broker) -> None:
    with Subscriber(broker) as subscriber, publishing_to(broker) as (publisher, door):
        gate = publisher.stream("gate", make_encoder())
        wait_online(publisher)
        threads = [threading.Thread(target=put, args=(stream, *range(200))) for stream in (door, gate)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        subscriber.wait_for(lambda _: len(subscriber.messages("/result/gate")) == 200, "the results of one")
        subscriber.wait_for(lambda _: len(numbers(subscriber)) == 200, "the results of the other")
        for camera in ("door", "gate"):
            results = documents(subscriber.messages(f"/result/{camera}"))
            assert [(d["camera"], d["seq"]) for d in results] == [(camera, number) for number in range(200)]
        assert broker.log.count("as edge/default/pi ") == publisher.stats().connects == 1
        gate.close()
        subscriber.wait_for(lambda _: list(states(subscriber)[-1]) == ["door"], "the state without the other")
        subscriber.wait_for(lambda _: _cameras(subscriber) == ["door"], "the status without the other")
        put(door, 200)
        subscriber.wait_for(lambda _: numbers(subscriber)[-1] == 200, "a result of the one that stays")


def test_two_programs_of_one_name_say_what_happens(broker: Broker) -> None:
    said: list[tuple[State, str]] = []
    with publishing_to(broker, on_state=lambda *s: said.append(s)) as (first, _):
        wait_online(first)
        with publishing_to(broker) as (second, _):
            wait_online(second)
            rival = "does another program have the same site and device? give each its own name"
            wait_until(lambda: any(rival in d for _, d in said), "the suspicion")


def test_last_will_of_a_killed_publisher(broker: Broker) -> None:
    root = Path(__file__).parents[2]
    with Subscriber(broker) as subscriber:
        command = [sys.executable, "-c", _VICTIM, broker.url]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"online\n"
            subscriber.wait_for(lambda _: "warnings" in latest_state(subscriber, "gate"), "the state")
            victim.kill()
        subscriber.wait_for(lambda _: statuses(subscriber)[-1][:2] == ("offline", "lost"), "the last will")
        online, *_, lost = documents(subscriber.messages(STATUS))
        assert online["status"] == "online"
        assert lost["boot_id"] == online["boot_id"]
        assert lost["run_id"] == online["run_id"]
    with Subscriber(broker) as late:
        late.wait_for(lambda messages: len(messages) == 2, "what is retained")
        assert statuses(late) == [("offline", "lost", True)]
        [message] = late.messages(STATE)
        assert message.retain
        assert states(late)[0]["door"]["warnings"] == {"hung": "of the door"}


@pytest.mark.parametrize(("user", "password"), [("", None), ("camera", "wrong"), ("stranger", "right")])
def test_wrong_password_is_said_once_and_tried_again(tmp_path: Path, user: str, password: str | None) -> None:
    states: list[tuple[State, str]] = []
    with Broker(tmp_path, users={"camera": "right"}) as broker:
        with publishing_to(broker, user=user, password=password, on_state=lambda s, d: states.append((s, d))) as (
            publisher,
            door,
        ):
            put(door, 1)
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
        publishing_to(broker, user="camera", password="right") as (_publisher, door),
    ):
        put(door, 1)
        subscriber.wait_for(
            lambda messages: {m.topic.removeprefix("edge/v1/default/pi") for m in messages} == {STATUS, STATE, RESULT},
            "status, state and result",
        )


def test_a_topic_that_is_not_allowed(tmp_path: Path) -> None:
    states: list[tuple[State, str]] = []
    acl = ["user camera", "topic write edge/v1/default/pi/status", "topic write edge/v1/default/pi/state"]
    with (
        Broker(tmp_path, users={"camera": "right"}, acl=acl) as broker,
        publishing_to(broker, qos=1, user="camera", password="right", on_state=lambda *s: states.append(s)) as (
            publisher,
            door,
        ),
    ):
        put(door, *range(5))
        until(publisher, lambda s: s.rejected == 5, "five complaints")
        assert (publisher.stats().acknowledged, publisher.stats().connects) == (0, 1)
        assert [s for s in states if "not take" in s[1]] == [
            (
                "online",
                "the broker did not take a message on edge/v1/default/pi/result/door: Not authorized; its ACL must let "
                "this device write below edge/v1/default/pi/",
            )
        ]
