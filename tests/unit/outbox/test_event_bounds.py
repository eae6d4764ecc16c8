"""An event outbox that sheds what it has no room for, while it is emptied: what is counted is what happened."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from pathlib import Path

import pytest

from edge_sdk.publishing.durable import EventOutbox, Held, Losses
from tests.support.outboxes import WAIT_S, outbox_at, put, taken, until
from tests.support.outboxes import delivered as received


def _deliver_until(outbox: EventOutbox, is_over: threading.Event, delivered: list[int]) -> None:
    """As a publisher with a window of 18 does; a link that breaks now and then."""
    flying: deque[Held] = deque()
    while not is_over.is_set() or flying:
        event = None if is_over.is_set() else outbox.take()
        if event is not None:
            flying.append(event)
        else:
            time.sleep(0.0005)
        if flying and (event is None or len(flying) >= 18):
            outbox.deliver(flying[0])
            delivered.append(flying.popleft().seq)


@pytest.mark.parametrize("why", ["overflow", "age"])
def test_what_is_shed_while_it_is_delivered_is_counted_once(tmp_path: Path, why: str) -> None:
    age_s, started_s = (1e9, 0.0) if why == "overflow" else (0.2, time.monotonic())
    delivered: list[int] = []
    is_over = threading.Event()
    with outbox_at(
        tmp_path / "events.sqlite",
        max_mb=1 if why == "overflow" else 64,
        max_age_s=age_s,
        now_s=lambda: 10 * (time.monotonic() - started_s),  # a second of age is looked at ten times as often
    ) as outbox:
        count = 0
        for _ in range(30):
            count += len(put(outbox, 100, size=300))
            assert outbox.wait_committed(WAIT_S)
        thread = threading.Thread(target=_deliver_until, args=(outbox, is_over, delivered))
        thread.start()
        for _ in range(150):
            count += len(put(outbox, 50, size=300))
            time.sleep(0.01)
        until(lambda: outbox.stats().waiting <= 0)
        is_over.set()
        thread.join()
        stats = outbox.stats()
        assert getattr(stats.lost, why) > 100
        assert len(delivered) == len(set(delivered)) == stats.delivered
        assert (stats.put, stats.delivered + stats.lost.total, stats.waiting) == (count, count, 0)


def test_what_the_broker_has_just_answered_makes_room_before_anything_is_lost(tmp_path: Path) -> None:
    with outbox_at(tmp_path / "events.sqlite", max_mb=1) as outbox:
        while not outbox.stats().lost.overflow:
            put(outbox, 100, size=300)
            assert outbox.wait_committed(WAIT_S)
        lost = outbox.stats().lost
        received(outbox, outbox.waiting)
        for _ in range(10):
            numbers = put(outbox, 100, size=300)
            assert outbox.wait_committed(WAIT_S)
            assert received(outbox, outbox.waiting) == numbers
        assert outbox.stats().lost == lost


def test_nothing_is_taken_while_the_file_is_looked_through_for_what_must_go(tmp_path: Path) -> None:
    """Bounded by bytes: what was taken a moment before is kept, and what is lost is taken by nobody."""
    with outbox_at(tmp_path / "events.sqlite", max_mb=1) as outbox:
        first = put(outbox, 100, size=1000)
        assert outbox.wait_committed(WAIT_S)
        on_their_way = taken(outbox, 18)
        for _ in range(15):
            put(outbox, 100, size=1000)
            assert outbox.wait_committed(WAIT_S)
        assert outbox.stats().lost.overflow > 0
        outbox.end_connection(is_orderly=False)
        assert [event.seq for event in taken(outbox, 18)] == [event.seq for event in on_their_way] == first[:18]
        stats = outbox.stats()
        assert stats.put == stats.waiting + stats.lost.total


def test_what_the_broker_has_is_not_lost_though_an_older_one_comes_again(tmp_path: Path) -> None:
    with outbox_at(tmp_path / "events.sqlite", max_mb=1) as outbox:
        put(outbox, 40, size=1000)
        assert outbox.wait_committed(WAIT_S)
        first, *others = taken(outbox, 18)
        for event in others:
            outbox.deliver(event)
        outbox.give_back(first, 0.0)  # refused for now: from it on all is still in the file
        while outbox.stats().lost.overflow < 100:
            put(outbox, 100, size=1000)
            assert outbox.wait_committed(WAIT_S)
        stats = outbox.stats()
        assert stats.put == stats.delivered + stats.waiting + stats.lost.total
        assert len(received(outbox, outbox.waiting)) == stats.waiting
        assert outbox.stats().waiting == 0
        assert outbox.take() is None


def test_what_only_memory_has_at_the_end_is_lost_and_said(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    (tmp_path / "events.sqlite").mkdir()  # no file can be there
    with outbox_at(tmp_path / "events.sqlite", said=said) as outbox:
        put(outbox, 5)
        until(lambda: outbox.is_ready)
        outbox.deliver(taken(outbox, 1)[0])
        outbox.end_connection(is_orderly=True)
        outbox.close(WAIT_S)
        assert outbox.stats().lost.total == outbox.stats().lost.memory == 4
    assert ("events_lost", "4 events are lost since the start: 4 in memory only") in said


def test_what_is_put_aside_for_good_is_bounded_by_bytes_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path, max_mb=1) as outbox:
        numbers = put(outbox, 40, size=5000)
        for event in taken(outbox, 40):
            outbox.refuse(event, "Payload format invalid")
        assert outbox.stats().lost == Losses(quarantine=40)
    with sqlite3.connect(path) as sql:
        kept = [seq for (seq,) in sql.execute("SELECT seq FROM quarantine ORDER BY id")]
    sql.close()
    assert kept == numbers[-6:]  # of 31,250 bytes


@pytest.mark.parametrize("waiting", [0, 8000], ids=["empty by then", "nearly full"])
def test_a_file_whose_bound_was_lowered_is_made_smaller(tmp_path: Path, waiting: int) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path, max_mb=8) as outbox:
        numbers = put(outbox, 8000, size=500)
        assert outbox.wait_committed(WAIT_S)
        assert received(outbox, 8000 - waiting) == numbers[: 8000 - waiting]
    assert path.stat().st_size > 4_000_000
    with outbox_at(path, max_mb=1.5) as outbox:
        new = put(outbox, 10, size=500)
        assert outbox.wait_committed(WAIT_S)
        until(lambda: path.stat().st_size < 1_500_000)
        left = outbox.waiting
        assert received(outbox, left) == [*numbers, *new][-left:]
        assert outbox.stats().lost == Losses(overflow=waiting + 10 - left)
        for _ in range(40):  # and it stays so
            put(outbox, 100, size=500)
            assert outbox.wait_committed(WAIT_S)
    assert path.stat().st_size < 1_500_000
    with outbox_at(path, max_mb=1.5) as outbox:
        assert outbox.stats().set_aside == 0
