"""Events while the network between device and broker fails in every way that it can."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from edge_sdk.publishing import Backoff, MqttPublisher, MqttSettings
from edge_sdk.publishing.durable import EventOutbox, OutboxSettings
from edge_sdk.publishing.mqtt_stream import MqttStream
from tests.support.broker import TRICKLE_BYTES, WAIT_S, Broker, Mode, Proxy, Subscriber, wait_until
from tests.support.event_device import encoded
from tests.support.results import IDENTITY, make_encoder
from tests.support.subscribers import PERSISTENT, Witness

pytestmark = pytest.mark.system


class Device:
    """A publisher with one camera and an outbox on disk."""

    def __init__(self, port: int, folder: Path, stall_s: int) -> None:
        self.said: list[tuple[str, str]] = []
        self.events = EventOutbox(
            OutboxSettings(), folder / "events.sqlite", "boot", on_trouble=lambda *said: self.said.append(said)
        )
        assert self.events.wait_committed(WAIT_S)  # with nothing put: what its file has is known
        settings = MqttSettings(host="127.0.0.1", port=port, device="pi", keepalive_s=stall_s)
        self.publisher = MqttPublisher(settings, IDENTITY, events=self.events, backoff=Backoff(0.02, 0.1))
        self.stream: MqttStream = self.publisher.stream("door", make_encoder())

    def put(self, count: int) -> list[int]:
        """So many events, and their numbers once all are acknowledged."""
        numbers = [self.stream.put_event(lambda seq: encoded(IDENTITY, seq)) for _ in range(count)]
        assert self.events.wait_committed(WAIT_S)
        return numbers

    @property
    def waiting(self) -> int:
        return self.publisher.stats().events.waiting


@contextmanager
def device_at(port: int, folder: Path, stall_s: int = 1) -> Iterator[Device]:
    device = Device(port, folder, stall_s)
    try:
        yield device
    finally:
        device.publisher.close(WAIT_S)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    folder = tmp_path / "broker"
    folder.mkdir()
    with Broker(folder, persistence=True, config=PERSISTENT) as broker:
        yield broker


def _brings_all(device: Device, witness: Witness, numbers: list[int]) -> None:
    wait_until(lambda: set(numbers) <= witness.numbers, f"all events; {device.publisher.stats()}")
    wait_until(lambda: device.waiting == 0, f"an end of waiting; {device.publisher.stats()}")
    first_arrivals = list(dict.fromkeys(witness.order))
    assert first_arrivals == numbers  # in order, and nothing that was never put
    assert not witness.conflicts
    assert device.publisher.stats().events.lost.total == 0


@pytest.mark.parametrize("mode", ["swallow", "reset"])
def test_a_link_that_fails_and_comes_back(tmp_path: Path, broker: Broker, mode: Mode) -> None:
    with Witness(broker) as witness, Proxy(broker.port) as proxy, device_at(proxy.port, tmp_path) as device:
        numbers = device.put(50)
        wait_until(lambda: len(witness.numbers) >= 50, "the first events")
        for _ in range(2):
            before = proxy.connections
            proxy.mode = mode
            numbers += device.put(50)
            wait_until(lambda before=before: proxy.connections > before, "another connection")
            numbers += device.put(50)
            proxy.mode = "pass"
            numbers += device.put(50)
            wait_until(lambda: device.waiting == 0, f"an end of waiting; {device.publisher.stats()}")
        _brings_all(device, witness, numbers)


def test_a_link_that_lets_little_through_at_a_time(tmp_path: Path, broker: Broker) -> None:
    with Witness(broker) as witness, Proxy(broker.port) as proxy, device_at(proxy.port, tmp_path, stall_s=10) as device:
        numbers = device.put(50)
        wait_until(lambda: device.waiting == 0, f"an end of waiting; {device.publisher.stats()}")
        plain_bytes, plain_s = sum(proxy.pieces), proxy.flow_s
        proxy.mode, proxy.pieces, proxy.flow_s = "trickle", [], 0.0
        numbers += device.put(50)
        wait_until(lambda: device.waiting == 0, f"an end of waiting; {device.publisher.stats()}")
        trickled, trickled_s = list(proxy.pieces), proxy.flow_s
        proxy.mode = "pass"
        numbers += device.put(50)
        _brings_all(device, witness, numbers)
        # In far more pieces than there are messages, and far slower than the same link before.
        assert max(trickled) == TRICKLE_BYTES
        assert len(trickled) > 50 * 3
        assert trickled_s / sum(trickled) > 50 * plain_s / plain_bytes
        # Slow is not dead: nothing was given up, so nothing came twice.
        assert (proxy.connections, witness.doubles) == (1, 0)


def test_a_frozen_broker(tmp_path: Path, broker: Broker) -> None:
    with Witness(broker) as witness, device_at(broker.port, tmp_path) as device:
        numbers = device.put(20)
        wait_until(lambda: len(witness.numbers) == 20, "the first events")
        wait_until(lambda: device.waiting == 0, "the broker's answers")
        broker.freeze()
        numbers += device.put(300)
        wait_until(lambda: device.publisher.stats().state == "connecting", "the connection to be given up")
        assert device.waiting >= 300  # the first ones are in doubt, too: it said nothing after them
        broker.thaw()
        _brings_all(device, witness, numbers)


def test_a_broker_that_comes_back_without_its_sessions(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    with (
        Broker(folder) as broker,
        Proxy(broker.port) as proxy,
        device_at(proxy.port, tmp_path) as device,
        Witness(broker) as witness,
    ):
        numbers = device.put(20)
        wait_until(lambda: len(witness.numbers) == 20, "the first events")
        for _ in range(2):
            known = witness.subscriptions
            proxy.mode = "reset"
            broker.kill()
            numbers += device.put(100)
            broker.start()
            # What a broker takes that knows no subscriber is gone, as it was told to be: here it knows one first.
            wait_until(lambda known=known: witness.subscriptions > known, "the witness")
            proxy.mode = "pass"
            wait_until(lambda: device.waiting == 0, f"an end of waiting; {device.publisher.stats()}")
        _brings_all(device, witness, numbers)


def test_an_event_that_nobody_subscribed_to_is_delivered(tmp_path: Path, broker: Broker) -> None:
    with device_at(broker.port, tmp_path) as device:
        device.put(10)  # the broker's answer is reason 0x10, which is no failure
        wait_until(lambda: device.waiting == 0, "the end of waiting")
        assert (device.publisher.stats().events.delivered, device.said) == (10, [])


def test_what_waits_is_sent_by_the_next_process(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    with Broker(folder, start=False, persistence=True, config=PERSISTENT) as broker:
        with device_at(broker.port, tmp_path) as device:
            numbers = device.put(1500)
            device.publisher.close(0.1)
        broker.start()
        with Witness(broker) as witness, device_at(broker.port, tmp_path) as device:
            assert device.publisher.stats().events.waiting > 0
            numbers += device.put(3)
            assert numbers == list(range(numbers[0], numbers[0] + 1503))
            _brings_all(device, witness, numbers)
            assert witness.doubles == 0


def _numbers(subscriber: Subscriber) -> set[int]:
    return {msgspec.json.decode(message.payload)["seq"] for message in subscriber.messages("event/yard")}


def test_events_that_the_broker_never_takes_are_put_aside_and_the_others_arrive(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    acl = ["topic readwrite edge/v1/default/pi/#", "topic deny edge/v1/default/pi/event/yard"]
    with (
        Broker(folder, acl=acl, config=["max_packet_size 3000"]) as broker,
        Subscriber(broker, "edge/v1/default/pi/event/#") as subscriber,
        device_at(broker.port, tmp_path) as device,
    ):
        yard = device.publisher.stream("yard", make_encoder())
        first = device.put(1)
        denied = [yard.put_event(lambda seq: b'{"seq":%d}' % seq)]
        device.stream.put_event(lambda seq: b'{"big":"%s"}' % (b"x" * 4000))
        last = device.put(1)
        wait_until(lambda: device.waiting == 0, f"the end of waiting; {device.publisher.stats()}")
        stats = device.publisher.stats()
        assert (stats.events.delivered, stats.events.lost.quarantine, stats.connects) == (2, 2, 1)
        subscriber.wait_for(lambda messages: len(messages) == 2, "the good ones")
        assert last[0] == first[0] + 2  # the gap is what was put aside
        refusals = [line for name, line in device.said if name == "events_refused" and line]
        assert any("event/yard" in line and "ACL" in line for line in refusals)
        (folder / "acl").write_text("topic readwrite #\n")
        os.kill(broker.pid, signal.SIGHUP)
        # Until it has read its ACL again it denies more of them; with the first that it takes all come.
        for _ in range(80):
            denied.append(yard.put_event(lambda seq: b'{"seq":%d}' % seq))
            time.sleep(0.1)
            if subscriber.messages("event/yard"):
                break
        subscriber.wait_for(lambda _: _numbers(subscriber) == set(denied), "what was denied")
        wait_until(lambda: device.waiting == 0, "the end of waiting")
        assert device.publisher.stats().events.lost.quarantine == 1  # the large one
