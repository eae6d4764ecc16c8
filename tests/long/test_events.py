"""Events outlive random kills, a power cut and a week without a broker; a fleet goes through the same."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from edge_sdk.core.threads import Backoff
from edge_sdk.fleet.fleet import Fleet
from edge_sdk.fleet.messages import DeviceAddress, read
from edge_sdk.messages.schema import TelemetryMessage
from edge_sdk.outbox.event import OutboxSettings
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publishing.publisher import MqttPublisher
from edge_sdk.publishing.settings import MqttSettings
from tests.support.broker import WAIT_S, Broker, Subscriber, wait_until
from tests.support.event_device import encoded
from tests.support.fleet import SimulatedFleet
from tests.support.results import IDENTITY, make_encoder
from tests.support.subscribers import PERSISTENT, FleetWitness, KillableDevice, Witness, kill_at_random, put

pytestmark = pytest.mark.system

SECONDS = 20.0  # at 200 events a second; `python -m benchmarks.experiments.events kills` does the same for a minute


def test_kills_of_broker_and_device_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    seed = int(os.environ.get("KILLS_SEED", 0)) or random.randrange(1, 2**32)
    sys.stdout.write(f"KILLS_SEED={seed}\n")
    with (
        Broker(tmp_path, persistence=True, config=PERSISTENT) as broker,
        Witness(broker) as witness,
    ):
        device = KillableDevice(broker.port, tmp_path / "outbox")
        device.start()
        killed = kill_at_random(broker, device, witness, SECONDS, seed)
        device.kill()
        device.start(rate=1.0)  # it brings what the ones before had on disk
        acknowledged = set(device.acknowledged)
        wait_until(lambda: acknowledged <= witness.numbers, "every acknowledged event")
        device.kill()
        assert min(killed) > 0, killed
        assert len(acknowledged) > 20 * SECONDS
        assert not witness.conflicts  # what came twice was the same each time: its number tells


_HOURS = 7 * 24
_EVENTS_AN_HOUR = 60
_JOURNAL_BYTES = 1_200_000


def _memory_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1000


def test_a_week_without_a_broker(tmp_path: Path) -> None:
    now_s = 1000.0
    settings = OutboxSettings(max_mb=1.0, max_age_days=6, commit_s=0.001)
    events = EventOutbox(settings, tmp_path / "outbox" / "events.sqlite", "boot", now_s=lambda: now_s)
    with Broker(tmp_path, persistence=True, config=PERSISTENT[1:]) as broker, Witness(broker) as witness:
        broker.stop()
        where = MqttSettings(host=broker.host, port=broker.port, device="pi")
        publisher = MqttPublisher(where, IDENTITY, events=events, backoff=Backoff(0.05, 0.2))
        stream = publisher.stream("door", make_encoder())
        numbers: list[int] = []
        largest, begun_mb = 0, 0.0
        for hour in range(_HOURS):
            numbers += [stream.put_event(lambda seq: encoded(IDENTITY, seq)) for _ in range(_EVENTS_AN_HOUR)]
            put(stream, *range(hour * 30, hour * 30 + 30))
            publisher.telemetry(
                TelemetryMessage(**msgspec.structs.asdict(IDENTITY), at=datetime.now(timezone.utc), load1=float(hour))
            )
            assert events.wait_committed(WAIT_S)
            now_s += 3600.0
            largest = max(largest, sum(file.stat().st_size for file in (tmp_path / "outbox").iterdir()))
            if hour == _HOURS // 2:
                begun_mb = _memory_mb()
        assert largest <= 1_000_000 + _JOURNAL_BYTES
        assert _memory_mb() < begun_mb + 10
        stats = publisher.stats()
        # Of telemetry one, of results a thousand, of events what the file holds.
        assert (stats.queued, stats.dropped) == (1000, _HOURS * 30 - 1000)
        broker.start()
        wait_until(lambda: publisher.stats().events.waiting == 0, "the end of waiting")
        wait_until(lambda: len(witness.numbers) >= publisher.stats().events.delivered, "the events")
        lost = publisher.stats().events.lost
        assert lost.overflow > 0
        assert lost.total == lost.overflow + lost.age
        kept = numbers[lost.total :]
        assert len(kept) > 2000
        assert list(dict.fromkeys(witness.order)) == kept  # the newest, in order
        publisher.close(WAIT_S)


def test_a_killed_fleet_is_lost_each_device_once_and_comes_back(tmp_path: Path) -> None:
    processes, devices_each = 2, 10
    size = processes * devices_each
    with (
        Broker(tmp_path, persistence=True) as broker,
        FleetWitness(broker) as witness,
        SimulatedFleet(broker.port, tmp_path / "outboxes", processes=processes, devices_each=devices_each) as fleet,
    ):

        def start() -> None:
            fleet.start()
            wait_until(lambda: len(fleet.online_since(0.0)) == size, "all publishers to be online")
            wait_until(lambda: witness.count("online") == size, "all devices to say online")

        def runs() -> dict[str, tuple[str, str]]:
            return {device: (said.boot_id, said.run_id) for device, said in witness.latest().items()}

        start()
        wait_until(lambda: len(fleet.acknowledged) == size, "an event of each on disk")
        killed, killed_at = runs(), time.monotonic()
        assert len(set(killed.values())) == size
        fleet.kill()
        wait_until(lambda: witness.count("offline") == size, "all last wills")
        with Subscriber(broker, "edge/v1/#") as late:
            late.wait_for(lambda messages: len(messages) == 2 * size, "every status and state")
            seen = Fleet()
            for message in late.messages():
                address = DeviceAddress.of(message.topic, "edge/v1")
                assert address is not None
                seen.take(address, read(address.kind, message.payload), datetime.now(timezone.utc), is_retained=True)
        assert Counter((view.status, view.reason) for view in seen.devices.values()) == {("offline", "lost"): size}

        started_at = time.monotonic()
        start()
        acknowledged = {device: set(numbers) for device, numbers in fleet.acknowledged.items()}
        wait_until(lambda: not witness.lacking(acknowledged), "all events that were on disk")
        assert not witness.conflicts  # what came twice was the same each time: its number tells
        wills = {device: (*killed[device], "lost") for device in killed}
        found = witness.since(killed_at, "offline")
        assert {device: (will.boot_id, will.run_id, will.reason) for device, will in found} == wills
        assert len(found) == size
        assert not witness.since(started_at, "offline")
        assert not set(runs().values()) & set(killed.values())
        assert Counter(said.state for run in fleet.runs.values() for said in run) == {"online": size}
