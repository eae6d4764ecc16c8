"""The publisher on an uplink that is slower than what there is to send."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.event import Event
from edge_sdk.publishing import Stream
from edge_sdk.publishing.channels import Channel
from tests.support.broker import Broker, Proxy, Subscriber, TlsBroker, free_port, wait_until
from tests.support.subscribers import RESULT, numbers, publishing_to, put

pytestmark = pytest.mark.system

_EVENT = "/event/door"


@contextmanager
def _reached(folder: Path, way: str) -> Iterator[tuple[Broker, int, dict[str, Any]]]:
    """A broker, its port, and how it is reached there."""
    if way in ("tcp", "ws"):
        port = free_port()
        web = [f"listener {port} 127.0.0.1", "protocol websockets"]
        with Broker(folder, config=web) as broker:
            yield (broker, broker.port, {}) if way == "tcp" else (broker, port, {"websocket_path": "/mqtt"})
        return
    more = ["protocol websockets"] if way == "wss" else []
    with TlsBroker(folder, more=more) as tls:
        yield tls, tls.tls_port, {**tls.reach, "websocket_path": "/mqtt" if way == "wss" else None}


@pytest.mark.parametrize("way", ["tcp", "tls", "ws", "wss"])
def test_an_event_goes_before_the_results_that_wait_for_a_slow_link(tmp_path: Path, way: str) -> None:
    with (
        _reached(tmp_path, way) as (broker, port, reach),
        Subscriber(broker) as subscriber,
        Proxy(port, bytes_per_s=40_000) as proxy,
        publishing_to(broker, **{**reach, "port": proxy.port}) as (publisher, door),
    ):
        put(door, *range(800), count=20)  # two megabytes
        subscriber.wait_for(lambda _: len(numbers(subscriber)) >= 10, "results")
        for _ in range(3):
            assert _results_before_an_event(subscriber, door) < 60
            # What is on the way: a window, and what kernel and network hold.
            assert publisher.stats().sent - len(numbers(subscriber)) < 60
        proxy.bytes_per_s = 1e9
        subscriber.wait_for(lambda _: len(numbers(subscriber)) == 800, "all results")
        assert numbers(subscriber) == list(range(800))
        assert publisher.stats().connects == 1


def test_a_picture_for_which_a_link_is_too_slow_is_given_up_in_its_own_words(tmp_path: Path) -> None:
    said: list[str] = []
    ways = {"keepalive_s": 1, "snapshots": Channel(qos=1)}
    with (
        Broker(tmp_path) as broker,
        Subscriber(broker) as subscriber,
        Proxy(broker.port, bytes_per_s=4000) as proxy,
        publishing_to(broker, port=proxy.port, on_state=lambda *s: said.append(s[1]), on_doubt=said.append, **ways) as (
            publisher,
            door,
        ),
    ):
        wait_until(lambda: publisher.stats().state == "online", "the connection")
        publisher.snapshot("door", b"x" * 60_000, 1)
        publisher.snapshot("door", b"x" * 1000, 2)
        wait_until(lambda: publisher.stats().snapshots_lost == 1, f"the end of the large one; {said}")
        door.put(Event(kind="after"))
        subscriber.wait_for(lambda _: bool(subscriber.messages(_EVENT)), "the event behind it")
        subscriber.wait_for(lambda _: bool(subscriber.messages("/snapshot/door")), "the small picture")
        assert publisher.stats().connects > 3
    [blame] = [line for line in said if "given up" in line]
    assert blame.startswith("a message (snapshot) is given up: one of 60000 bytes took longer on this link than")
    assert not [line for line in said if "another program" in line or "max_packet_size" in line or "one by one" in line]


def _results_before_an_event(subscriber: Subscriber, door: Stream) -> int:
    before, known = len(subscriber.messages(RESULT)), len(subscriber.messages(_EVENT))
    door.put(Event(kind="test"))
    wait_until(lambda: len(subscriber.messages(_EVENT)) > known, "the event")
    return len(subscriber.messages(RESULT)) - before
