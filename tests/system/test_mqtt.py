"""The publisher against a real Mosquitto, read by a subscriber of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

import jsonschema
import msgspec
import pytest

from edge_sdk.publishing import (
    State,
    result_schema,
    status_schema,
)
from tests.system.broker import Broker, Subscriber, wait_until
from tests.system.publishers import (
    QOS,
    RESULT,
    documents,
    numbers,
    publishing_to,
    put,
    statuses,
    until,
    wait_online,
)

pytestmark = pytest.mark.system


@pytest.mark.parametrize("qos", QOS)
def test_results_arrive_as_documented(broker: Broker, qos: Literal[0, 1]) -> None:
    with Subscriber(broker) as subscriber:
        with publishing_to(broker, qos=qos) as publisher:
            put(publisher, *range(100))
        subscriber.wait_for(lambda messages: len(messages) >= 102, "100 results and two statuses")
        assert [m.topic for m in subscriber.messages()] == [
            "edge/v1/default/pi/status/door",
            *["edge/v1/default/pi/result/door"] * 100,
            "edge/v1/default/pi/status/door",
        ]
        assert numbers(subscriber) == list(range(100))
        message = subscriber.messages(RESULT)[0]
        assert (message.qos, message.retain, message.content_type) == (qos, False, "application/json")
        assert message.user_properties == (("schema", "1"), ("stream", "result"))
        assert message.expiry_s in (59, 60)
        jsonschema.validate(documents([message])[0], msgspec.json.decode(result_schema()))
    stats = publisher.stats()
    assert (stats.put, stats.sent, stats.queued, stats.dropped, stats.state) == (100, 100, 0, 0, "closed")
    assert stats.acknowledged == (100 if qos else 0)


def test_status_is_retained_before_and_after(broker: Broker) -> None:
    with publishing_to(broker) as publisher:
        wait_online(publisher)
        with Subscriber(broker, "edge/v1/+/+/status/+") as late:
            late.wait_for(lambda messages: len(messages) == 1, "the retained status")
            assert statuses(late) == [("online", None, True)]
            assert documents(late.messages())[0]["versions"] == {"edge_sdk": "0.0"}
    with Subscriber(broker, "edge/v1/+/+/status/+") as later:
        later.wait_for(lambda messages: len(messages) == 1, "the retained status")
        assert statuses(later) == [("offline", "shutdown", True)]


_VICTIM = """
import sys, time
from edge_sdk.publishing import MqttPublisher, MqttSettings
from edge_sdk.publishing.mqtt import WINDOW, MqttLink
from tests.device.results import make_encoder
publisher = MqttPublisher(MqttSettings.parse(sys.argv[1], device="pi", camera="door"), make_encoder())
while publisher.stats().state != "online":
    time.sleep(0.01)
print("online", flush=True)
time.sleep(60)
"""


def test_every_status_keeps_to_its_schema(broker: Broker) -> None:
    with Subscriber(broker, "edge/v1/+/+/status/+") as subscriber:
        with publishing_to(broker) as publisher:
            wait_online(publisher)
        subscriber.wait_for(lambda messages: len(messages) == 2, "both statuses")
        for document in documents(subscriber.messages()):
            jsonschema.validate(document, msgspec.json.decode(status_schema()))


def test_two_cameras_of_one_device_leave_each_other_alone(broker: Broker) -> None:
    with (
        Subscriber(broker) as subscriber,
        publishing_to(broker) as door,
        publishing_to(broker, camera="gate") as gate,
    ):
        for publisher in (door, gate):
            wait_online(publisher)
        put(door, 1)
        subscriber.wait_for(lambda _: numbers(subscriber) == [1], "the result")
        assert (door.stats().connects, gate.stats().connects) == (1, 1)
        gate.close()
        subscriber.wait_for(lambda _: len(subscriber.messages("/status/gate")) == 2, "the farewell of one")
        assert [s for s, _, _ in statuses(subscriber)] == ["online"]


def test_two_programs_of_one_name_say_what_happens(broker: Broker) -> None:
    states: list[tuple[State, str]] = []
    with publishing_to(broker, on_state=lambda *s: states.append(s)) as first:
        wait_online(first)
        with publishing_to(broker) as second:
            wait_online(second)
            rival = "does another program have the same site, device and camera?"
            wait_until(lambda: any(d.endswith(rival) for _, d in states), "the suspicion")


def test_last_will_of_a_killed_publisher(broker: Broker) -> None:
    root = Path(__file__).parents[2]
    with Subscriber(broker) as subscriber:
        command = [sys.executable, "-c", _VICTIM, broker.url]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"online\n"
            victim.kill()
        subscriber.wait_for(lambda messages: len(messages) == 2, "the last will")
        assert [(s, r) for s, r, _ in statuses(subscriber)] == [("online", None), ("offline", "lost")]
        online, lost = documents(subscriber.messages())
        assert lost["boot_id"] == online["boot_id"]
        assert lost["run_id"] == online["run_id"]
    with Subscriber(broker) as late:
        late.wait_for(lambda messages: len(messages) == 1, "the retained will")
        assert statuses(late) == [("offline", "lost", True)]


@pytest.mark.parametrize(("user", "password"), [("", None), ("camera", "wrong"), ("stranger", "right")])
def test_wrong_password_is_said_once_and_tried_again(tmp_path: Path, user: str, password: str | None) -> None:
    states: list[tuple[State, str]] = []
    with Broker(tmp_path, users={"camera": "right"}) as broker:
        with publishing_to(
            broker, user=user, password=password, on_state=lambda s, d: states.append((s, d))
        ) as publisher:
            put(publisher, 1)
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
        publishing_to(broker, user="camera", password="right") as publisher,
    ):
        put(publisher, 1)
        subscriber.wait_for(lambda messages: len(messages) == 2, "status and result")


def test_a_topic_that_is_not_allowed(tmp_path: Path) -> None:
    states: list[tuple[State, str]] = []
    acl = ["user camera", "topic write edge/v1/default/pi/status/#"]
    with (
        Broker(tmp_path, users={"camera": "right"}, acl=acl) as broker,
        publishing_to(
            broker, qos=1, user="camera", password="right", on_state=lambda *s: states.append(s)
        ) as publisher,
    ):
        put(publisher, *range(5))
        until(publisher, lambda s: s.rejected == 5, "five complaints")
        assert (publisher.stats().acknowledged, publisher.stats().connects) == (0, 1)
        assert [s for s in states if "not take" in s[1]] == [
            ("online", "the broker did not take a message: Not authorized")
        ]
