"""The publisher on an uplink that is slower than what there is to send."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.event import Event
from edge_sdk.publishing import Stream
from tests.system.broker import Broker, Subscriber, free_port, wait_until
from tests.system.proxy import Proxy
from tests.system.publishers import RESULT, numbers, publishing_to, put
from tests.system.tls_broker import TlsBroker

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


def _results_before_an_event(subscriber: Subscriber, door: Stream) -> int:
    before, known = len(subscriber.messages(RESULT)), len(subscriber.messages(_EVENT))
    door.put(Event(kind="test"))
    wait_until(lambda: len(subscriber.messages(_EVENT)) > known, "the event")
    return len(subscriber.messages(RESULT)) - before
