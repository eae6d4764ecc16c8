"""The file of an outbox is opened beside the streams, and what `wait_committed` promises of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.outbox.event import Losses, OutboxSettings, QueuedEvent
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.outbox.store import EventStore
from tests.support.outboxes import TOPIC, WAIT_S, SlowDisk, committed, delivered, outbox_at, payload, put, taken, until


def _outbox(path: Path, **more: Any) -> EventOutbox:
    return EventOutbox(OutboxSettings(commit_s=0.002), path, "boot", **more)


@contextmanager
def _opening(path: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Iterator[tuple[EventOutbox, threading.Event]]:
    """An outbox on a disk that hangs when it is read first; the event lets it."""
    may_go, is_asked, real = threading.Event(), threading.Event(), EventStore.__init__

    def delayed(*arguments: Any) -> None:
        is_asked.set()
        assert may_go.wait(WAIT_S)
        real(*arguments)

    monkeypatch.setattr(EventStore, "__init__", delayed)
    outbox = _outbox(path, **more)
    try:
        assert is_asked.wait(WAIT_S)
        yield outbox, may_go
    finally:
        may_go.set()
        outbox.close(WAIT_S)


def test_an_end_that_begins_before_the_file_is_open_tells_that_events_wait_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path) as outbox:
        put(outbox, 1)
    with _opening(path, monkeypatch) as (outbox, may_go):
        put(outbox, 4)
        ending = threading.Thread(target=outbox.close, args=(WAIT_S,))
        ending.start()
        until(outbox._closing.is_set)
        may_go.set()
        ending.join()
        assert (outbox.stats().waiting, outbox.stats().is_durable) == (5, True)


@pytest.mark.parametrize("count", [3, 1500])
def test_a_disk_that_hangs_at_the_start_holds_up_nobody_and_no_number_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path, wall_s=lambda: 1000.0) as outbox:
        numbers = put(outbox, 5)
    with _opening(path, monkeypatch, wall_s=lambda: 0.0) as (outbox, may_go):
        encoders: set[str] = set()

        def encode(seq: int) -> bytes:
            encoders.add(threading.current_thread().name)
            return payload(seq)

        assert [outbox.put(TOPIC + "door", "door", encode) for _ in range(count)] == [None] * count
        assert (outbox.waiting, outbox.stats().put, outbox.wait_committed(0.01)) == (count, count, False)
        may_go.set()
        assert outbox.wait_committed(WAIT_S)
        assert outbox.waiting == count + 5
        assert delivered(outbox, count + 5) == list(range(numbers[0], numbers[0] + count + 5))
        assert encoders == {"edge-outbox"}  # and not who put them


def test_a_successor_has_the_file_once_the_one_before_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.sqlite"
    disk, first = SlowDisk(monkeypatch), _outbox(path)
    put_first = [first.put(TOPIC + "door", "door", payload)]
    assert first.wait_committed(WAIT_S)
    disk.may_go.clear()
    put_first.append(first.put(TOPIC + "door", "door", payload))
    until(lambda: not first.wait_committed(0.0))
    first.close(0.01)
    with outbox_at(path) as second:
        put_second = put(second, 1)
        assert not second.wait_committed(0.05)
        disk.may_go.set()
        assert second.wait_committed(WAIT_S)
        assert sorted(delivered(second, 3)) == sorted([*put_first, *put_second])


def test_what_waits_for_a_disk_that_hangs_at_the_start_is_bounded_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path) as outbox:
        numbers = put(outbox, 1)
    with _opening(path, monkeypatch) as (outbox, may_go):
        for number in range(10_003):
            outbox.put(TOPIC + "door", "door", lambda _, number=number: b"%d" % number)  # type: ignore[misc]
        stats = outbox.stats()
        assert (stats.put, stats.waiting, stats.lost) == (10_003, 10_000, Losses(memory=3))
        may_go.set()
        assert [outbox.wait_committed(WAIT_S) for _ in range(2)] == [False, True]
        first, *others = taken(outbox, 3)
        assert first.seq == numbers[0]
        assert [event.payload for event in others] == [b"3", b"4"]
        assert outbox.waiting == 10_001


def test_each_thread_is_told_once_of_what_was_lost_before_it_was_on_disk(tmp_path: Path) -> None:
    said = list[tuple[str, str]]()
    with outbox_at(tmp_path / "events.sqlite", max_mb=1, said=said) as outbox, ThreadPoolExecutor(1) as other:
        assert other.submit(outbox.wait_committed, WAIT_S).result()
        [large] = put(outbox, 1, size=2_000_000)
        until(lambda: outbox.stats().lost == Losses(quarantine=1))  # though it is alone
        put(outbox, 1)
        found = [outbox.wait_committed(WAIT_S), outbox.wait_committed(WAIT_S)]
        found += [other.submit(outbox.wait_committed, WAIT_S).result() for _ in range(2)]
        assert found == [False, True, False, True]
        assert delivered(outbox, 1) == [large + 1]
        assert "too many to wait; make it smaller, or raise [outbox] max_mb" in said[0][1]


def test_what_memory_had_no_room_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    with outbox_at(tmp_path / "events.sqlite", max_memory_bytes=100_000) as outbox:
        committed(outbox, 1)
        disk.may_go.clear()
        put(outbox, 1)
        until(lambda: not outbox._queue.has_new)  # its thread hangs in the disk
        put(outbox, 300, size=1000)
        assert outbox.stats().lost.memory > 100
        assert not outbox.wait_committed(0.01)  # not in time: nothing is told yet
        disk.may_go.set()
        assert not outbox.wait_committed(WAIT_S)
        committed(outbox, 1)


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
        outbox.reject(taken(outbox, 1)[0], "Not authorized")
        assert not outbox.wait_committed(WAIT_S)


def test_events_that_come_soon_after_one_another_are_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, commit = list[int](), EventStore.commit

    def counted(store: EventStore, events: Sequence[QueuedEvent], *others: Any) -> None:
        commits.append(len(events))
        commit(store, events, *others)

    monkeypatch.setattr(EventStore, "commit", counted)
    with outbox_at(tmp_path / "events.sqlite", commit_s=2.0) as outbox:
        committed(outbox, 1)
        commits.clear()
        put(outbox, 1)
        until(lambda: not outbox._is_idle)
        put(outbox, 60)
        assert outbox.wait_committed(WAIT_S)
        assert commits == [61]


def test_a_held_event_that_could_not_be_encoded_is_told_though_nothing_was_put_since(tmp_path: Path) -> None:
    outbox, said = _outbox(tmp_path / "events.sqlite"), list[tuple[str, str]]()
    outbox.listen(lambda *warning: said.append(warning))
    outbox.limit(0.001)
    try:
        assert outbox.put(TOPIC + "door", "door", payload) is not None
        assert outbox.put(TOPIC + "door", "door", lambda seq: seq.to_bytes(1, "big")) is None
        found = [outbox.wait_committed(WAIT_S)]  # no rate is waited for
        outbox.release_held()
        found += [outbox.wait_committed(WAIT_S) for _ in range(2)]
        assert found == [True, False, True]
        [(name, line)] = said
        assert (name, line.partition(": ")[0]) == ("event_encoding", "an event is left out that cannot be encoded")
    finally:
        outbox.close(WAIT_S)


def test_what_an_earlier_process_left_and_the_broker_refuses_is_nobodys_loss_here(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path) as outbox:
        put(outbox, 3)
    told: list[bool] = []
    with outbox_at(path) as outbox:
        outbox.reject(taken(outbox, 1)[0], "Payload format invalid")
        put(outbox, 1)
        thread = threading.Thread(target=lambda: told.append(outbox.wait_committed(WAIT_S)))
        thread.start()
        thread.join()
        assert told == [True]
