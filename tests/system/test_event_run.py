"""`edge-sdk run` brings what an earlier process could not send, and says what is wrong with the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.publishing import EventOutbox, OutboxSettings
from tests.support.broker import WAIT_S, Broker, wait_until
from tests.support.configs import AT_EASE, config_text, write_config
from tests.support.device import Device
from tests.support.event_device import encoded
from tests.support.program import edge_sdk
from tests.support.results import IDENTITY
from tests.support.subscribers import PERSISTENT, Witness

pytestmark = pytest.mark.system


def _text(bundle: Path, broker: Broker) -> str:
    return config_text(
        {"door": {"source": "pattern:128x128@20", "bundle": bundle, "best_effort": True, "trial_s": 0, **AT_EASE}},
        mqtt={"url": broker.url},
        outbox={"folder": "waiting"},
    )


def _config(tmp_path: Path, bundle: Path, broker: Broker) -> Path:
    return write_config(tmp_path, _text(bundle, broker))


@pytest.mark.smoke
def test_a_run_brings_the_events_of_an_earlier_one(cell_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    numbers = _put_before(tmp_path, 30)
    with Broker(folder, persistence=True, config=PERSISTENT) as broker, Witness(broker) as witness:
        done = edge_sdk("run", "--config", _config(tmp_path, cell_bundle, broker), "--duration", 4)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: list(dict.fromkeys(witness.order)) == numbers, "the events")
        assert "online; 30 events waited for it" in done.stderr
    settings = OutboxSettings(folder=tmp_path / "waiting")
    outbox = EventOutbox(settings, settings.path_of("default", "pi"), IDENTITY.boot_id)
    assert outbox.wait_committed(WAIT_S)
    assert outbox.waiting == 0
    outbox.close(WAIT_S)


def test_a_reload_brings_what_waits_to_another_broker(cell_bundle: Path, tmp_path: Path) -> None:
    """The file is closed by who had it, and opened by who comes next: in order, nothing twice, and numbers go on."""
    folder, other = tmp_path / "broker", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    rules = '[[events]]\nlabels = ["red", "blue"]\nappear_s = 0\n'
    with (
        Broker(folder) as first,
        Broker(other, persistence=True, config=PERSISTENT) as second,
        Witness(second) as witness,
    ):
        first.stop()
        numbers = _put_before(tmp_path, 30)
        with Device(write_config(tmp_path, _text(cell_bundle, first) + rules)) as device:
            device.hear("not reachable")
            device.reload(_text(cell_bundle, second) + rules)
            wait_until(lambda: list(dict.fromkeys(witness.order))[:30] == numbers, "the events")
            assert device.stop() == 0, device.said
        assert len(witness.order) == len(set(witness.order))


def _put_before(tmp_path: Path, count: int) -> list[int]:
    """Events of an earlier process."""
    settings = OutboxSettings(folder=tmp_path / "waiting")
    outbox = EventOutbox(settings, settings.path_of("default", "pi"), IDENTITY.boot_id)
    topic = "edge/v1/default/pi/event/door"
    numbers = [outbox.put(topic, "door", lambda seq: encoded(IDENTITY, seq)) for _ in range(count)]
    outbox.close()
    return numbers


def test_a_run_says_that_its_file_was_damaged(cell_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    path = OutboxSettings(folder=tmp_path / "waiting").path_of("default", "pi")
    path.parent.mkdir()
    path.write_text("this is no database" * 1000)
    with Broker(folder) as broker:
        done = edge_sdk("run", "--config", _config(tmp_path, cell_bundle, broker), "--duration", 2)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "damaged" in line]
    assert f"warning: {path} was damaged (file is not a database) and is put aside as {path.name}.damaged-1" in line
