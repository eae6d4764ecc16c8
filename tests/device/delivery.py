"""What tests of the publisher do: make one over connections made by hand, give it results, wait for what happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from edge_sdk.publishing import Backoff, EventOutbox, MemoryOutbox, MqttPublisher, MqttSettings, State
from edge_sdk.publishing.mqtt_stream import MqttStream
from tests.device.links import FakeLink
from tests.device.results import IDENTITY, make_detections, make_encoder, make_frame

WAIT_S = 30.0
"""Longest wait for what takes milliseconds on a machine that does nothing else."""


class Door(NamedTuple):
    """A publisher with one camera."""

    publisher: MqttPublisher
    stream: MqttStream


def publisher_over(
    *links: FakeLink,
    keepalive_s: int = 30,
    on_state: Callable[[State, str], None] | None = None,
    outbox: MemoryOutbox | None = None,
    events: EventOutbox | None = None,
    **changes: Any,
) -> MqttPublisher:
    """It connects by each of the links in turn, and then by none."""
    remaining = iter(links)
    return MqttPublisher(
        MqttSettings(host="broker", port=1883, device="pi", keepalive_s=keepalive_s),
        IDENTITY,
        on_state=on_state,
        outbox=outbox,
        events=events,
        backoff=Backoff(0.001, 0.002),
        make_link=lambda: next(remaining, FakeLink(error=ConnectionRefusedError(111, "Connection refused"))),
        **changes,
    )


def door_over(
    *links: FakeLink,
    keepalive_s: int = 30,
    on_state: Callable[[State, str], None] | None = None,
    outbox: MemoryOutbox | None = None,
    events: EventOutbox | None = None,
    **changes: Any,
) -> Door:
    """The same, with one camera that is there before the first connection: nothing follows the first status."""
    links[0].may_open.clear()
    publisher = publisher_over(
        *links, keepalive_s=keepalive_s, on_state=on_state, outbox=outbox, events=events, **changes
    )
    stream = publisher.stream("door", make_encoder())
    links[0].may_open.set()
    return Door(publisher, stream)


def put(stream: MqttStream, *numbers: int) -> None:
    for number in numbers:
        stream.put(make_detections(1, make_frame(number)))


def has_connected(publisher: MqttPublisher, times: int) -> Callable[[], bool]:
    return lambda: publisher.stats().connects == times


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)
