"""No acknowledged event is lost while the broker and the device are killed at random."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from edge_sdk.publishing import OutboxSettings
from tests.device.event_outboxes import outbox_at, taken
from tests.system.broker import Broker, wait_until
from tests.system.event_device import DEVICE
from tests.system.event_witness import PERSISTENT, KillableDevice, Witness

pytestmark = pytest.mark.system

ROUNDS = 10
_NOBODY = 9  # a port at which no broker listens


def test_kills_in_the_middle_of_commits_leave_all_that_was_acknowledged_in_the_file(tmp_path: Path) -> None:
    """As near to a power cut as a machine comes where nobody may mount a disk; test_event_disks has the real one."""
    rng = random.Random(11)
    device = KillableDevice(_NOBODY, tmp_path, rate=500.0)
    for _ in range(4):
        device.start()
        time.sleep(rng.uniform(0.1, 0.6))
        device.kill()
    with outbox_at(OutboxSettings(folder=tmp_path).path_of("default", DEVICE)) as outbox:
        assert device.acknowledged <= {event.seq for event in taken(outbox, outbox.waiting)}
        assert outbox.stats().set_aside == 0
    assert len(device.acknowledged) > 100


def test_kills_of_broker_and_device_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(7)
    with (
        Broker(tmp_path, persistence=True, config=PERSISTENT) as broker,
        Witness(broker) as witness,
    ):
        device = KillableDevice(broker.port, tmp_path / "outbox")
        device.start()
        for number in range(ROUNDS):
            time.sleep(rng.uniform(0.5, 1.5))
            if number % 2:
                device.kill()
                device.start()
            else:
                before = witness.subscriptions
                broker.kill()
                time.sleep(rng.uniform(0.1, 0.5))
                broker.start()
                wait_until(lambda before=before: witness.subscriptions > before, "the witness to be back")
        device.kill()
        device.start(rate=1.0)  # it brings what the ones before had on disk
        acknowledged = set(device.acknowledged)
        wait_until(lambda: acknowledged <= witness.numbers, "every acknowledged event")
        device.kill()
        assert len(acknowledged) > 100 * ROUNDS
        assert not witness.conflicts  # what came twice was the same each time: its number tells
