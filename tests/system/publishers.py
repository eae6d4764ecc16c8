"""Publishers to a real broker, and what a subscriber saw of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from edge_sdk.publishing import (
    Backoff,
    EventOutbox,
    MemoryOutbox,
    MqttPublisher,
    MqttSettings,
    PublisherStats,
    ResultEncoder,
    Secret,
    State,
    Stream,
)
from edge_sdk.publishing.mqtt import MqttLink
from tests.device.delivery import Door
from tests.device.results import IDENTITY, make_detections, make_encoder, make_frame
from tests.system.broker import WAIT_S, Broker, Received, Subscriber, wait_until

QOS: tuple[Literal[0, 1], ...] = (0, 1)
RESULT, STATUS, STATE = "/result/door", "/status", "/state"


@contextmanager
def publishing_to(
    broker: Broker,
    *,
    qos: Literal[0, 1] = 0,
    user: str = "",
    password: str | None = None,
    on_state: Callable[[State, str], None] | None = None,
    on_doubt: Callable[[str], None] | None = None,
    outbox: MemoryOutbox | None = None,
    encoder: ResultEncoder | None = None,
    links: list[MqttLink] | None = None,
    event_outbox: EventOutbox | None = None,
    **changes: Any,
) -> Iterator[Door]:
    """A publisher with one camera."""
    who = {"host": broker.host, "port": broker.port, **changes}
    secret = None if password is None else Secret(password)
    settings = MqttSettings(device="pi", qos=qos, username=user or None, password=secret, **who)

    def make_link() -> MqttLink:
        assert links is not None
        links.append(MqttLink(settings, b"{}"))
        return links[-1]

    publisher = MqttPublisher(
        settings,
        IDENTITY,
        on_state=on_state,
        on_doubt=on_doubt,
        versions={"edge_sdk": "0.0"},
        outbox=outbox,
        events=event_outbox,
        backoff=Backoff(0.05, 0.2),
        make_link=None if links is None else make_link,
    )
    try:
        yield Door(publisher, publisher.stream("door", encoder or make_encoder()))
    finally:
        publisher.close(timeout_s=WAIT_S)


def put(stream: Stream, *numbers: int, count: int = 2) -> None:
    for number in numbers:
        stream.put(make_detections(count, make_frame(number, stream.camera)))


def until(publisher: MqttPublisher, condition: Callable[[PublisherStats], bool], what: str) -> None:
    wait_until(lambda: condition(publisher.stats()), f"{what}; {publisher.stats()}")


def wait_online(publisher: MqttPublisher) -> None:
    until(publisher, lambda s: s.state == "online", "the connection")


def documents(messages: list[Received]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(m.payload) for m in messages]


def numbers(subscriber: Subscriber) -> list[int]:
    return [d["seq"] for d in documents(subscriber.messages(RESULT))]


def states(subscriber: Subscriber) -> list[dict[str, Any]]:
    """What each state says of the cameras."""
    return [d["cameras"] for d in documents(subscriber.messages(STATE))]


def latest_state(subscriber: Subscriber, camera: str = "door") -> dict[str, Any]:
    """What the latest state says of one camera; empty where it says nothing, or there is none."""
    camera_state: dict[str, Any] = [{}, *states(subscriber)][-1].get(camera, {})
    return camera_state


def running_in(subscriber: Subscriber, camera: str) -> list[dict[str, Any]]:
    """What ran of one camera, each once in a row: the state comes again for other reasons too."""
    said = [cameras[camera]["running"] for cameras in states(subscriber) if "running" in cameras.get(camera, {})]
    return [running for running, _ in itertools.groupby(said)]


def statuses(subscriber: Subscriber) -> list[tuple[str, str | None, bool]]:
    messages = subscriber.messages(STATUS)
    return [(d["status"], d.get("reason"), m.retain) for d, m in zip(documents(messages), messages, strict=True)]
