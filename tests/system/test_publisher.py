"""`Publisher` at a real broker: what is heard of it, and that kills cost no event."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.support.broker import Broker, wait_until
from tests.support.subscribers import PERSISTENT, KillableDevice, Witness

pytestmark = pytest.mark.system

_PROGRAM = "library"


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    folder = tmp_path / "outbox"
    folder.mkdir()
    return folder


@pytest.mark.smoke
def test_kills_of_broker_and_program_lose_nothing_that_was_acknowledged(tmp_path: Path, outbox: Path) -> None:
    rng = random.Random(5)
    with Broker(tmp_path, persistence=True, config=PERSISTENT) as broker, Witness(broker) as witness:
        device = KillableDevice(broker.port, outbox, program=_PROGRAM)
        device.start()
        for _ in range(2):
            before = witness.subscriptions
            broker.kill()
            reached = len(device.acknowledged)
            wait_until(lambda: len(device.acknowledged) > reached + 20, "events without a broker")  # noqa: B023
            device.kill()
            device.start()
            time.sleep(rng.uniform(0.0, 0.3))
            device.kill()
            broker.start()
            wait_until(lambda: witness.subscriptions > before, "the witness to be back")  # noqa: B023
            device.start()
        device.kill()
        device.start(rate=1.0)  # it brings what the ones before had on disk
        acknowledged = set(device.acknowledged)
        wait_until(lambda: acknowledged <= witness.numbers, "every acknowledged event")
        device.kill()
        assert len(acknowledged) > 40
        assert not witness.conflicts
