"""Events that a broker refuses: tried again or put aside, and how long the others wait for that."""

from __future__ import annotations

import math
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.core.threads import Backoff
from edge_sdk.outbox.event import Losses
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.outbox.store import EventStore
from edge_sdk.outbox.writer import Writer
from edge_sdk.publishing.connection import Wakeup
from edge_sdk.publishing.queues import Queues
from edge_sdk.publishing.retained import DeviceState, RetainedPublisher
from edge_sdk.publishing.session import PublishWarnings, Sender
from edge_sdk.publishing.settings import MqttSettings
from tests.support.connections import FakeLink
from tests.support.outboxes import TOPIC, WAIT_S, outbox_at, put, taken, until
from tests.support.results import IDENTITY

WINDOW = 18  # of twenty, two are for results
POISON = b"poison"


@contextmanager
def _sending(folder: Path, hold: Backoff, poisons: set[int]) -> Iterator[tuple[Sender, EventOutbox]]:
    """With forty events of which some are poison."""
    with outbox_at(folder / "events.sqlite") as events:
        settings = MqttSettings(host="broker", port=1883, device="pi")
        queues = Queues(events, settings.channels)
        device_state = DeviceState(IDENTITY, {}, RetainedPublisher(settings.topics))
        warnings = PublishWarnings(device_state, lambda _line: None)
        for number in range(40):
            payload = POISON if number in poisons else b"%d" % number
            events.put(TOPIC + "door", "door", lambda _, payload=payload: payload)
        assert events.wait_committed(WAIT_S)
        until(lambda: events.is_ready)
        yield Sender(queues, warnings, 60.0, hold), events


def _link(code: int) -> FakeLink:
    link = FakeLink(judge=lambda _, message: ("refused", code) if message.payload == POISON else ("", 0))
    wakeup = Wakeup()
    link.turn(0.0, wakeup)
    wakeup.close()
    return link


def _round(sender: Sender, events: EventOutbox, link: FakeLink) -> None:
    """Send a window, as soon as events are sent at all, and settle it."""
    until(lambda: not events.is_held)
    while sender.send_next(link):
        pass
    sender.settle(link)


@pytest.mark.parametrize("poisons", [{3}, {3, 5}, set(range(40))], ids=["one", "two", "all"])
def test_each_is_tried_eight_times_and_put_aside(tmp_path: Path, poisons: set[int]) -> None:
    with _sending(tmp_path, Backoff(0.001, 0.002), poisons) as (sender, events):
        link = _link(0x83)
        while events.waiting:
            _round(sender, events, link)
            assert len(link.published) <= 40 * 8, "it goes on for ever"
        assert events.stats().lost == Losses(quarantine=len(poisons))
        assert [m.payload for _, m in link.published].count(POISON) == 8 * len(poisons)
        good = [m.payload for _, m in link.published if m.payload != POISON]
        assert good == [b"%d" % number for number in range(40) if number not in poisons]


def test_a_broker_that_denies_every_event_makes_them_wait_without_end(tmp_path: Path) -> None:
    with _sending(tmp_path, Backoff(0.001, 0.002), set(range(40))) as (sender, events):
        link = _link(0x87)
        for _ in range(12):
            _round(sender, events, link)
        assert len(link.published) == 12 * WINDOW
        assert (events.waiting, events.stats().lost.total) == (40, 0)


def test_a_window_that_is_refused_is_one_step_of_the_back_off(tmp_path: Path) -> None:
    steps: list[float] = []

    def longest(_: float, ceiling_s: float) -> float:
        steps.append(ceiling_s)
        return ceiling_s

    with _sending(tmp_path, Backoff(3600.0, 7200.0, longest), set(range(40))) as (sender, events):
        link = _link(0x83)
        link.pace = 5  # answers come a few at a time
        while sender.send_next(link):
            pass
        assert len(link.published) == WINDOW
        for _ in range(4):
            sender.settle(link)
        assert steps == [3600.0]
        assert events.is_held
        assert events.waiting == 40


@pytest.mark.parametrize("pace", [10**9, 5], ids=["at once", "a few at a time"])
def test_a_window_that_is_refused_stays_on_disk_and_in_order(tmp_path: Path, pace: int) -> None:
    with _sending(tmp_path, Backoff(0.001, 0.002), set(range(40))) as (sender, events):
        link = _link(0x97)
        link.pace = pace
        for _ in range(3):
            _round(sender, events, link)
        while sender._in_flight:
            sender.settle(link)
        events.put(TOPIC + "door", "door", lambda _: b"one more")  # what is through goes with the next commit
        assert events.wait_committed(WAIT_S)
        for file in tmp_path.glob("events.sqlite*"):  # as a power cut leaves them
            shutil.copy(file, tmp_path / f"copy{file.name}")
        with outbox_at(tmp_path / "copyevents.sqlite") as copy:
            assert copy.waiting == 41
        free = FakeLink()
        while events.waiting:
            _round(sender, events, free)
        sent = [message.seq for _, message in free.published]
        assert sent == sorted(sent)
        assert len(sent) == 41


DENIED = "Not authorized (reason code 135)"


def test_what_is_refused_while_its_thread_writes_stays_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copy = tmp_path / "events.sqlite", tmp_path / "copy.sqlite"
    with outbox_at(path) as outbox:
        numbers = put(outbox, 1)
        [event] = taken(outbox, 1)
        commit, keep_bounds, is_refused = EventStore.commit, Writer._keep_bounds, threading.Event()

        def refused_meanwhile(writer: Writer, store: EventStore) -> None:
            if not is_refused.is_set():
                outbox.reject(event, DENIED)
                writer._look_at = -math.inf  # the time has come to look for what is through
                is_refused.set()
            keep_bounds(writer, store)

        def killed_after(store: EventStore, *arguments: Any) -> None:
            commit(store, *arguments)
            if is_refused.is_set() and not copy.exists():
                with closing(sqlite3.connect(copy)) as sql:
                    store._sql.backup(sql)

        monkeypatch.setattr(Writer, "_keep_bounds", refused_meanwhile)
        monkeypatch.setattr(EventStore, "commit", killed_after)
        put(outbox, 1)
        until(copy.exists)
    with closing(sqlite3.connect(copy)) as sql:
        kept = [seq for table in ("event", "quarantine") for (seq,) in sql.execute(f"SELECT seq FROM {table}")]
    assert numbers[0] in kept
