"""An event outbox on a disk that fails: whatever fails and when, no acknowledged event is lost that is not counted."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.publishing import Backoff
from edge_sdk.publishing.durable import EventOutbox, Losses, OutboxSettings
from edge_sdk.publishing.durable.age_clock import AgeClock
from edge_sdk.publishing.durable.complaints import Complaints
from edge_sdk.publishing.durable.disk import Disk
from edge_sdk.publishing.durable.numbers import Numbers
from edge_sdk.publishing.durable.shelf import Shelf
from edge_sdk.publishing.durable.store import EventStore
from edge_sdk.publishing.durable.writer import Writer
from tests.support.outboxes import TOPIC, WAIT_S, deliver_all, folder_in_memory, outbox_at, payload, put, until


class FailingDisk:
    """One that does not take a transaction now and then, or says that it did not though it did.

    Attributes:
        share: of the transactions that fail.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
        self.share, self._rng, transaction = 0.0, rng, EventStore._transaction

        @contextmanager
        def failing(store: EventStore) -> Iterator[None]:
            self._fail("database or disk is full")
            with transaction(store):
                yield
            self._fail("disk I/O error")

        monkeypatch.setattr(EventStore, "_transaction", failing)

    def _fail(self, said: str) -> None:
        if self._rng.random() < self.share:
            raise sqlite3.OperationalError(said)


def _check_sum(outbox: EventOutbox) -> None:
    stats = outbox.stats()
    assert stats.put + stats.restored == stats.delivered + stats.waiting + stats.lost.total
    assert stats.waiting >= 0


@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.long)])
def test_of_a_disk_that_fails_now_and_then_nothing_is_missing_that_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    rng = random.Random(15)
    disk = FailingDisk(monkeypatch, rng)
    with folder_in_memory(tmp_path) as folder:
        for number in range(count):
            _live_and_check(folder / f"{number}" / "events.sqlite", disk, rng)


def _live_and_check(path: Path, disk: FailingDisk, rng: random.Random) -> None:
    size, max_mb = rng.choice([60, 3000]), rng.choice([1, 64])
    numbers, through, lost = set[int](), set[int](), 0
    for start in range(4):
        with outbox_at(path, max_mb=max_mb) as outbox:
            if start == 3:
                through |= {event.seq for event in deliver_all(outbox)}
                break
            disk.share = rng.choice([0.05, 0.2])
            for _ in range(rng.randrange(2, 8)):
                numbers.update(filter(None, put(outbox, rng.randrange(80), size=size)))
                outbox.wait_committed(0.005)
                through |= _send_some(outbox, rng)
                _check_sum(outbox)
            disk.share = 0.0
        _check_sum(outbox)
        lost += outbox.stats().lost.total - outbox.stats().lost.quarantine
    lost += outbox.stats().lost.total
    assert len(numbers - through) <= lost, path


def _send_some(outbox: EventOutbox, rng: random.Random) -> set[int]:
    sent = set[int]()
    while rng.random() < 0.97 and (event := outbox.take()) is not None:
        sent.add(event.seq)
        if rng.random() < 0.1:
            outbox.refuse(event, "Packet too large")
        else:
            outbox.deliver(event)
    return sent


def test_what_only_memory_has_is_not_overtaken_by_what_was_put_behind_it_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path) as outbox:
        earlier = put(outbox, 5)
    settings, clock = OutboxSettings(), AgeClock("boot")
    shelf = Shelf(Numbers(lambda: 0.0), clock.seconds, settings.max_memory_bytes)
    disk = Disk(path, settings, lambda *_: None, Backoff(0.001, 0.001))
    writer = Writer(shelf, disk, clock, settings, Complaints(lambda *_: None))
    with monkeypatch.context() as patch:
        patch.setattr(EventStore, "_prepare", _raise)
        writer.open()
        numbers = [shelf.put(TOPIC + "gate", "gate", payload) for _ in range(3)]
        writer.turn()
        found = _take_all(shelf)  # from memory
    until(lambda: disk.may_try)
    numbers += [shelf.put(TOPIC + "gate", "gate", payload) for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(EventStore, "commit", _raise)
        writer.turn()  # it is opened, and takes nothing
        found += _take_all(shelf)
    until(lambda: disk.may_try)
    writer.turn()
    found += _take_all(shelf)
    writer.close()
    assert found == numbers + earlier


def test_a_loss_is_counted_though_the_commit_that_forgets_it_seems_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, own, is_done = tmp_path / "events.sqlite", EventStore.own, list[bool]()
    with outbox_at(path) as outbox:
        put(outbox, 20)
    path.write_bytes(bytes(path.stat().st_size))

    def owned(*arguments: Any) -> None:
        own(*arguments)
        is_done.append(True)
        if len(is_done) == 1:
            _raise()

    monkeypatch.setattr(EventStore, "own", owned)
    with outbox_at(path) as outbox:
        put(outbox, 1)
        assert outbox.wait_committed(WAIT_S)
        assert (outbox.stats().lost, outbox.stats().restored) == (Losses(disk=20), 20)


def _take_all(shelf: Shelf) -> list[int]:
    return [event.seq for event in iter(shelf.take, None)]


def _raise(*_: object) -> None:
    raise sqlite3.OperationalError("disk is full")
