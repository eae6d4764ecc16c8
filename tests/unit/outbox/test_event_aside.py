"""Events that a broker's ACL denied: put aside, and offered again where that may help."""

from __future__ import annotations

import math
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.publishing.durable import Held, Losses
from edge_sdk.publishing.durable.aside import Aside
from edge_sdk.publishing.durable.store import EventStore
from edge_sdk.publishing.durable.writer import Writer
from tests.support.outboxes import TOPIC, outbox_at, put, taken, until

DENIED = "Not authorized (reason code 135)"


def test_what_was_denied_comes_again_once_the_broker_takes_an_event_of_that_topic(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    with outbox_at(tmp_path / "events.sqlite", said=said) as outbox:
        denied, yard = put(outbox, 3), put(outbox, 1, camera="yard")
        *door, other = taken(outbox, 4)
        for event in door:
            outbox.refuse(event, DENIED)
        outbox.deliver(other)  # of another topic: that says nothing of this one
        until(lambda: outbox.stats().lost == Losses(quarantine=3))
        assert (outbox.waiting, yard) == (0, [other.seq])
        later = put(outbox, 1)
        [allowed] = taken(outbox, 1)
        outbox.deliver(allowed)
        again = taken(outbox, 3)
        assert [event.seq for event in again] == denied
        assert [event.payload for event in again] == [event.payload for event in door]
        assert outbox.stats().lost == Losses()  # they wait
        assert outbox.waiting == 3
        assert outbox.committed_seq("door") == later[0]  # what comes again is none of the newest
        newest = put(outbox, 1)
        for event in again:
            outbox.deliver(event)
        assert [event.seq for event in taken(outbox, 1)] == newest
        assert later == [denied[-1] + 1]
        stats = outbox.stats()
        assert (stats.put, stats.delivered, stats.waiting) == (6, 5, 1)


def test_a_start_offers_what_was_denied_and_nothing_else_that_was_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path) as outbox:
        numbers = put(outbox, 3)
        denied, large, other = taken(outbox, 3)
        outbox.refuse(denied, DENIED)
        outbox.refuse(large, "Packet too large (reason code 149)")
        outbox.deliver(other)
    for _ in range(2):  # denied once more, it is put aside once more
        with outbox_at(path) as outbox:
            until(lambda outbox=outbox: outbox.is_ready)
            assert outbox.waiting == 1
            [event] = taken(outbox, 1)
            assert event.seq == numbers[0]
            outbox.refuse(event, DENIED)
            assert outbox.stats().lost == Losses(quarantine=1)
    with outbox_at(path) as outbox:
        [event] = taken(outbox, 1)
        outbox.deliver(event)
    with outbox_at(path) as outbox:
        put(outbox, 1)
        taken(outbox, 1)
        assert outbox.waiting == 1


def test_what_is_refused_while_its_thread_writes_stays_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copy = tmp_path / "events.sqlite", tmp_path / "copy.sqlite"
    with outbox_at(path) as outbox:
        numbers = put(outbox, 1)
        [event] = taken(outbox, 1)
        commit, is_refused = EventStore.commit, threading.Event()

        def refused_meanwhile(writer: Writer, store: EventStore, topics: set[str]) -> list[int]:
            if not is_refused.is_set():
                outbox.refuse(event, DENIED)
                writer._age_at = -math.inf  # the time has come to look for what is through
                is_refused.set()
            return []

        def killed_after(store: EventStore, *arguments: Any) -> None:
            commit(store, *arguments)
            if is_refused.is_set() and not copy.exists():
                with closing(sqlite3.connect(copy)) as sql:
                    store._sql.backup(sql)

        monkeypatch.setattr(Writer, "_offer_again", refused_meanwhile)
        monkeypatch.setattr(EventStore, "commit", killed_after)
        put(outbox, 1)
        until(copy.exists)
    with closing(sqlite3.connect(copy)) as sql:
        kept = [seq for table in ("event", "quarantine") for (seq,) in sql.execute(f"SELECT seq FROM {table}")]
    assert numbers[0] in kept


def test_a_broker_that_denies_some_and_takes_others_gets_them_once_a_minute() -> None:
    now_s = 100.0
    aside = Aside(lambda: now_s)
    event = Held(TOPIC + "door", b"1", "door", seq=1, id=1)
    found: list[bool] = []
    for _ in range(13):
        aside.refuse(event, DENIED)
        aside.delivered(event.topic)
        found.append(bool(aside.take_topics()))
        now_s += 10.0
    assert found == [True, False, False, False, False, False] * 2 + [True]
    aside.delivered("another")
    assert not aside.take_topics()
