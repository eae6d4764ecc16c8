"""The file of an outbox is opened beside the streams, however long the disk takes for that."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from edge_sdk.publishing.durable import EventOutbox, OutboxSettings
from edge_sdk.publishing.durable.store import EventStore
from tests.device.event_outboxes import TOPIC, WAIT_S, SlowDisk, delivered, outbox_at, payload, put, until


class SlowOpening:
    """A disk that takes its time to be read first; `may_go` lets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go, self.is_asked = threading.Event(), threading.Event()
        real = EventStore.__init__

        def delayed(*arguments: object) -> None:
            self.is_asked.set()
            assert self.may_go.wait(WAIT_S)
            real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(EventStore, "__init__", delayed)


def _outbox(path: Path, **more: object) -> EventOutbox:
    return EventOutbox(OutboxSettings(commit_s=0.002), path, "boot", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [3, 1500], ids=["some events", "more than wait without a number"])
def test_a_disk_that_hangs_at_the_start_holds_up_nobody_and_no_number_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path, wall_s=lambda: 1000.0) as outbox:
        numbers = put(outbox, 5)
    disk = SlowOpening(monkeypatch)
    outbox = _outbox(path, wall_s=lambda: 2000.0 if count > 1000 else 0.0)
    try:
        assert disk.is_asked.wait(WAIT_S)
        early = [outbox.put(TOPIC + "door", "door", payload) for _ in range(count)]
        assert early[0] is None
        assert (outbox.waiting, outbox.stats().put, outbox.wait_committed(0.01)) == (count, count, False)
        disk.may_go.set()
        assert outbox.wait_committed(WAIT_S)
        assert outbox.waiting == count + 5
        found = delivered(outbox, count + 5)
        assert len(set(found)) == count + 5
        assert set(numbers) < set(found)
        if count < 1000:
            assert found == list(range(numbers[0], numbers[0] + count + 5))
    finally:
        disk.may_go.set()
        outbox.close(WAIT_S)


def test_a_successor_waits_for_the_end_of_the_one_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said = tmp_path / "events.sqlite", list[tuple[str, str]]()
    disk, first = SlowDisk(monkeypatch), _outbox(path)
    put_first = [first.put(TOPIC + "door", "door", payload)]
    assert first.wait_committed(WAIT_S)
    disk.may_go.clear()
    put_first.append(first.put(TOPIC + "door", "door", payload))
    until(lambda: not first.wait_committed(0.0))
    first.close(0.01)
    second = _outbox(path, after=first, on_trouble=lambda name, line: said.append((name, line)))
    second.close(0.01)  # and so does the next one, for both
    third = _outbox(path, after=second, on_trouble=lambda name, line: said.append((name, line)))
    try:
        assert third.put(TOPIC + "door", "door", payload) is None
        disk.may_go.set()
        assert third.wait_committed(WAIT_S)
        numbers = delivered(third, 3)
        assert numbers[:2] == put_first
        assert "another program" not in str(said)
    finally:
        disk.may_go.set()
        third.close(WAIT_S)


def test_a_file_that_is_ours_at_the_second_try_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path) as outbox:
        numbers = put(outbox, 5)
    failures, real = [sqlite3.OperationalError("database or disk is full")], EventStore.own

    def own(*arguments: object) -> None:
        if failures:
            raise failures.pop()
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(EventStore, "own", own)
    with outbox_at(path) as outbox:
        numbers += put(outbox, 1)
        assert sorted(delivered(outbox, 6)) == numbers
        assert outbox.waiting == 0
        assert not failures
