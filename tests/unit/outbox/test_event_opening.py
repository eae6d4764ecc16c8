"""The file of an outbox is opened beside the streams, however long the disk takes for that."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from edge_sdk.publishing.durable import EventOutbox, Losses, OutboxSettings
from edge_sdk.publishing.durable.store import EventStore
from tests.support.outboxes import TOPIC, WAIT_S, SlowDisk, delivered, outbox_at, payload, put, taken, until


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


@pytest.mark.parametrize("count", [3, 1500])
def test_a_disk_that_hangs_at_the_start_holds_up_nobody_and_no_number_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path, wall_s=lambda: 1000.0) as outbox:
        numbers = put(outbox, 5)
    disk = SlowOpening(monkeypatch)
    outbox = _outbox(path, wall_s=lambda: 0.0)
    try:
        assert disk.is_asked.wait(WAIT_S)
        encoders: set[str] = set()

        def encode(seq: int) -> bytes:
            encoders.add(threading.current_thread().name)
            return payload(seq)

        assert [outbox.put(TOPIC + "door", "door", encode) for _ in range(count)] == [None] * count
        assert (outbox.waiting, outbox.stats().put, outbox.wait_committed(0.01)) == (count, count, False)
        disk.may_go.set()
        assert outbox.wait_committed(WAIT_S)
        assert outbox.waiting == count + 5
        assert delivered(outbox, count + 5) == list(range(numbers[0], numbers[0] + count + 5))
        assert encoders == {"edge-outbox"}  # and not who put them
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


def test_what_waits_for_a_disk_that_hangs_at_the_start_is_bounded_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path) as outbox:
        numbers = put(outbox, 1)
    disk = SlowOpening(monkeypatch)
    outbox = _outbox(path)
    try:
        assert disk.is_asked.wait(WAIT_S)
        for number in range(10_003):
            outbox.put(TOPIC + "door", "door", lambda _, number=number: b"%d" % number)  # type: ignore[misc]
        stats = outbox.stats()
        assert (stats.put, stats.waiting, stats.lost) == (10_003, 10_000, Losses(memory=3))
        disk.may_go.set()
        assert [outbox.wait_committed(WAIT_S) for _ in range(2)] == [False, True]
        first, *others = taken(outbox, 3)
        assert first.seq == numbers[0]
        assert [event.payload for event in others] == [b"3", b"4"]
        assert outbox.waiting == 10_001
    finally:
        disk.may_go.set()
        outbox.close(WAIT_S)


def test_who_puts_does_not_wait_while_what_came_early_gets_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path) as outbox:
        put(outbox, 1)
    disk, is_encoding, may_end = SlowOpening(monkeypatch), threading.Event(), threading.Event()

    def encode(seq: int) -> bytes:
        is_encoding.set()
        assert may_end.wait(WAIT_S)
        return payload(seq)

    outbox = _outbox(path)
    try:
        outbox.put(TOPIC + "door", "door", encode)
        disk.may_go.set()
        assert is_encoding.wait(WAIT_S)
        thread = threading.Thread(target=outbox.put, args=(TOPIC + "yard", "yard", payload))
        thread.start()
        thread.join(1.0)  # it takes microseconds
        assert not thread.is_alive()
    finally:
        may_end.set()
        disk.may_go.set()
        outbox.close(WAIT_S)
