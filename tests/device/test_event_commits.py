"""What `wait_committed` promises: all that was put before is on disk or at the broker, or whoever waits is told."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edge_sdk.publishing.durable import EventOutbox, Losses, OutboxSettings
from tests.device.event_outboxes import TOPIC, WAIT_S, SlowDisk, outbox_at, payload, put, taken, until
from tests.device.test_event_opening import SlowOpening


def test_each_thread_is_told_once_of_what_was_lost_before_it_was_on_disk(tmp_path: Path) -> None:
    with (
        outbox_at(tmp_path / "events.sqlite", max_mb=1) as outbox,
        ThreadPoolExecutor(1) as other,
    ):
        assert other.submit(outbox.wait_committed, WAIT_S).result()
        put(outbox, 1, size=2_000_000)
        put(outbox, 1)
        found = [outbox.wait_committed(WAIT_S), outbox.wait_committed(WAIT_S)]
        found += [other.submit(outbox.wait_committed, WAIT_S).result() for _ in range(2)]
        assert found == [False, True, False, True]
        assert outbox.stats().lost == Losses(quarantine=1)


def test_what_memory_had_no_room_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    with outbox_at(tmp_path / "events.sqlite", max_memory_bytes=100_000) as outbox:
        put(outbox, 1)
        assert outbox.wait_committed(WAIT_S)
        disk.may_go.clear()
        put(outbox, 1)
        until(lambda: not outbox._shelf.has_new)  # its thread hangs in the disk
        put(outbox, 300, size=1000)
        assert outbox.stats().lost.memory > 100
        assert not outbox.wait_committed(0.01)  # not in time: nothing is told yet
        disk.may_go.set()
        assert not outbox.wait_committed(WAIT_S)
        put(outbox, 1)
        assert outbox.wait_committed(WAIT_S)


def test_without_a_disk_what_the_broker_has_is_safe_and_what_it_refused_is_not() -> None:
    with outbox_at(None) as outbox:
        put(outbox, 2)
        first, second = taken(outbox, 2)
        assert not outbox.wait_committed(0.01)
        outbox.deliver(first)
        outbox.deliver(second)
        outbox.end_connection(is_orderly=True)
        assert outbox.wait_committed(WAIT_S)
        put(outbox, 1)
        outbox.refuse(taken(outbox, 1)[0], "Not authorized")
        assert not outbox.wait_committed(WAIT_S)


def test_an_event_that_could_not_be_encoded_after_its_file_was_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path) as outbox:
        put(outbox, 3)
    disk = SlowOpening(monkeypatch)
    outbox = EventOutbox(OutboxSettings(commit_s=0.002), path, "boot")
    try:
        assert outbox.put(TOPIC + "door", "door", lambda seq: seq.to_bytes(1, "big")) is None
        assert outbox.put(TOPIC + "door", "door", payload) is None
        disk.may_go.set()
        assert [outbox.wait_committed(WAIT_S) for _ in range(2)] == [False, True]
    finally:
        disk.may_go.set()
        outbox.close(WAIT_S)


def test_what_an_earlier_process_left_and_the_broker_refuses_is_nobodys_loss_here(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path) as outbox:
        put(outbox, 3)
    told: list[bool] = []
    with outbox_at(path) as outbox:
        outbox.refuse(taken(outbox, 1)[0], "Payload format invalid")
        put(outbox, 1)
        thread = threading.Thread(target=lambda: told.append(outbox.wait_committed(WAIT_S)))
        thread.start()
        thread.join()
        assert told == [True]
