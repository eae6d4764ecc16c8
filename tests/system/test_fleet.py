"""A fleet at one broker: what is said of each device when all are killed or started at once, or lose their broker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import pytest

from edge_sdk.fleet import Address, Fleet
from edge_sdk.fleet.reading import read
from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.fleet import SimulatedFleet
from tests.support.subscribers import FleetWitness

pytestmark = pytest.mark.system

PROCESSES, DEVICES_EACH = 2, 10
SIZE = PROCESSES * DEVICES_EACH


class Parts(NamedTuple):
    broker: Broker
    witness: FleetWitness
    fleet: SimulatedFleet


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    """All are online, and all have published."""
    with (
        Broker(tmp_path, persistence=True) as broker,
        FleetWitness(broker) as witness,
        SimulatedFleet(broker.port, tmp_path / "outboxes", processes=PROCESSES, devices_each=DEVICES_EACH) as fleet,
    ):
        fleet.start()
        parts = Parts(broker, witness, fleet)
        wait_online(parts)
        wait_until(lambda: len(fleet.acknowledged) == SIZE, "an event of each on disk")
        wait_until(lambda: len(witness.results) == SIZE, "a result of each")
        yield parts


def wait_online(parts: Parts, since: float = 0.0) -> None:
    wait_until(lambda: len(parts.fleet.online_since(since)) == SIZE, "all publishers to be online")
    wait_until(lambda: parts.witness.count("online") == SIZE, "all devices to say online")


def runs_of(witness: FleetWitness) -> dict[str, tuple[str, str]]:
    return {device: (said.boot_id, said.run_id) for device, said in witness.latest().items()}


def wait_for_all_events(parts: Parts) -> None:
    acknowledged = {device: set(numbers) for device, numbers in parts.fleet.acknowledged.items()}
    wait_until(lambda: not parts.witness.lacking(acknowledged), "all events that were on disk")
    assert not parts.witness.conflicts  # what came twice was the same each time: its number tells


@pytest.mark.long
def test_a_killed_fleet_is_lost_each_device_once_and_comes_back(parts: Parts) -> None:
    broker, witness, fleet = parts
    killed, killed_at = runs_of(witness), time.monotonic()
    assert len(set(killed.values())) == SIZE
    fleet.kill()
    wait_until(lambda: witness.count("offline") == SIZE, "all last wills")
    with Subscriber(broker, "edge/v1/#") as late:
        late.wait_for(lambda messages: len(messages) == 2 * SIZE, "every status and state")
        seen = Fleet()
        for message in late.messages():
            address = Address.of(message.topic, "edge/v1")
            assert address is not None
            seen.take(address, read(address.kind, message.payload), datetime.now(timezone.utc), is_retained=True)
    assert Counter((view.status, view.reason) for view in seen.devices.values()) == {("offline", "lost"): SIZE}

    started_at = time.monotonic()
    fleet.start()
    wait_online(parts)
    wait_for_all_events(parts)
    wills = witness.since(killed_at, "offline")
    assert {device: (will.boot_id, will.run_id, will.reason) for device, will in wills} == {
        device: (*run, "lost") for device, run in killed.items()
    }
    assert len(wills) == SIZE
    assert not witness.since(started_at, "offline")
    assert not set(runs_of(witness).values()) & set(killed.values())
    assert Counter(said.state for run in fleet.runs.values() for said in run) == {"online": SIZE}


def test_a_fleet_outlives_its_broker(parts: Parts) -> None:
    broker, witness, fleet = parts
    running, stopped_at = runs_of(witness), time.monotonic()
    broker.restart()
    wait_online(parts, stopped_at)
    wait_for_all_events(parts)
    assert runs_of(witness) == running
    fleet.stop()
    wait_until(lambda: witness.count("offline") == SIZE, "all goodbyes")
    assert {said.reason for said in witness.latest().values()} == {"shutdown"}


@pytest.mark.long
def test_a_fleet_that_is_killed_while_its_broker_is_frozen_loses_no_event(parts: Parts) -> None:
    broker, witness, fleet = parts
    killed = runs_of(witness)
    broker.freeze()
    before = len(witness.events)
    wait_until(lambda: len(lacking(parts)) >= SIZE, "events that are on disk only")
    fleet.kill()
    fleet.start()  # connections wait in the kernel: the broker has yet to see that the ones before are over
    broker.thaw()
    wait_online(parts)
    wait_until(lambda: not set(runs_of(witness).values()) & set(killed.values()), "the new runs only")
    wait_for_all_events(parts)
    assert len(witness.events) >= before + SIZE
    assert Counter(said.state for run in fleet.runs.values() for said in run) == {"online": SIZE}


def lacking(parts: Parts) -> list[tuple[str, int]]:
    return parts.witness.lacking(parts.fleet.acknowledged)
