"""Events that a broker refuses: which are tried again, how often, and how long the others wait for that."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_sdk.publishing import Backoff, EventOutbox, MemoryOutbox, MqttSettings
from edge_sdk.publishing.board import Board
from edge_sdk.publishing.durable import Losses
from edge_sdk.publishing.flight import Flight
from edge_sdk.publishing.notices import Notices
from edge_sdk.publishing.queues import Queues
from edge_sdk.publishing.refusals import Refusals
from edge_sdk.publishing.supply import Supply
from edge_sdk.publishing.wakeup import Wakeup
from tests.support.connections import FakeLink
from tests.support.outboxes import TOPIC, WAIT_S, outbox_at, until
from tests.support.results import IDENTITY

WINDOW = 18  # of twenty, two are for results
POISON = b"poison"


@contextmanager
def _supply(folder: Path, hold: Backoff, poisons: set[int]) -> Iterator[tuple[Supply, EventOutbox]]:
    """With forty events of which some are poison."""
    with outbox_at(folder / "events.sqlite") as events:
        settings = MqttSettings(host="broker", port=1883, device="pi")
        queues = Queues(MemoryOutbox(), events, settings.channels)
        board = Board(IDENTITY, {})
        refusals = Refusals(settings.topics, board, Notices(board, settings.topics))
        for number in range(40):
            payload = POISON if number in poisons else b"%d" % number
            events.put(TOPIC + "door", "door", lambda _, payload=payload: payload)
        assert events.wait_committed(WAIT_S)
        until(lambda: events.is_ready)
        yield Supply(queues, events, Flight(60.0), refusals, hold), events


def _link(code: int) -> FakeLink:
    link = FakeLink(judge=lambda _, message: ("refused", code) if message.payload == POISON else ("", 0))
    wakeup = Wakeup()
    link.turn(0.0, wakeup)
    wakeup.close()
    return link


def _round(supply: Supply, events: EventOutbox, link: FakeLink) -> None:
    """Send a window, as soon as events are sent at all, and settle it."""
    until(lambda: not events.is_held)
    while supply.send_next(link):
        pass
    supply.settle(link)


@pytest.mark.parametrize("poisons", [{3}, {3, 5}, set(range(40))], ids=["one", "two", "all"])
def test_each_is_tried_eight_times_and_put_aside(tmp_path: Path, poisons: set[int]) -> None:
    with _supply(tmp_path, Backoff(0.001, 0.002), poisons) as (supply, events):
        link = _link(0x83)
        while events.waiting:
            _round(supply, events, link)
            assert len(link.published) <= 40 * 8, "it goes on for ever"
        assert events.stats().lost == Losses(quarantine=len(poisons))
        assert [m.payload for _, m in link.published].count(POISON) == 8 * len(poisons)
        good = [m.payload for _, m in link.published if m.payload != POISON]
        assert good == [b"%d" % number for number in range(40) if number not in poisons]


def test_what_is_beyond_a_quota_is_tried_until_it_is_not(tmp_path: Path) -> None:
    with _supply(tmp_path, Backoff(0.001, 0.002), {3, 5}) as (supply, events):
        link = _link(0x97)
        for _ in range(30):
            _round(supply, events, link)
        assert (events.waiting, events.stats().lost.total) == (2, 0)
        free = FakeLink()
        _round(supply, events, free)
        assert events.waiting == 0


def test_a_window_that_is_refused_is_one_step_of_the_back_off(tmp_path: Path) -> None:
    steps: list[float] = []

    def longest(_: float, ceiling_s: float) -> float:
        steps.append(ceiling_s)
        return ceiling_s

    with _supply(tmp_path, Backoff(3600.0, 7200.0, longest), set(range(40))) as (supply, events):
        link = _link(0x83)
        link.pace = 5  # answers come a few at a time
        while supply.send_next(link):
            pass
        assert len(link.published) == WINDOW
        for _ in range(4):
            supply.settle(link)
        assert steps == [3600.0]
        assert events.is_held
        assert events.waiting == 40


@pytest.mark.parametrize("pace", [10**9, 5], ids=["at once", "a few at a time"])
def test_a_window_that_is_refused_stays_on_disk_and_in_order(tmp_path: Path, pace: int) -> None:
    with _supply(tmp_path, Backoff(0.001, 0.002), set(range(40))) as (supply, events):
        link = _link(0x97)
        link.pace = pace
        for _ in range(3):
            _round(supply, events, link)
        while supply._flight.messages():
            supply.settle(link)
        events.put(TOPIC + "door", "door", lambda _: b"one more")  # what is through goes with the next commit
        assert events.wait_committed(WAIT_S)
        for file in tmp_path.glob("events.sqlite*"):  # as a power cut leaves them
            shutil.copy(file, tmp_path / f"copy{file.name}")
        with outbox_at(tmp_path / "copyevents.sqlite") as copy:
            assert copy.waiting == 41
        free = FakeLink()
        while events.waiting:
            _round(supply, events, free)
        sent = [message.seq for _, message in free.published]
        assert sent == sorted(sent)
        assert len(sent) == 41
