"""No acknowledged event is lost while the broker and the device are killed at random."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from edge_sdk.publishing import OutboxSettings
from tests.device.event_outboxes import outbox_at, taken
from tests.system.broker import Broker, wait_until
from tests.system.event_device import DEVICE
from tests.system.event_witness import PERSISTENT, KillableDevice, Witness, kill_at_random

pytestmark = pytest.mark.system

SECONDS = 20.0
"""At 200 events a second; `python -m benchmarks.events kills` does the same for a minute."""
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
