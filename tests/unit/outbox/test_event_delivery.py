"""Events on their way to a broker: before results, in order, once more after a break, and put aside where refused."""

import math
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.core.threads import Backoff, Wakeup
from edge_sdk.messages.schema import Message, MessageKind
from edge_sdk.outbox import outbox
from edge_sdk.outbox.event import Losses
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.outbox.store import EventStore
from edge_sdk.outbox.writer import Writer
from edge_sdk.publishing.queues import Queues
from edge_sdk.publishing.retained import DeviceState, RetainedPublisher
from edge_sdk.publishing.session import PublishWarnings, Sender
from edge_sdk.publishing.settings import MqttSettings
from tests.support.connections import Door, FakeLink, door_over, put, until
from tests.support.outboxes import TOPIC, WAIT_S, SlowDisk, committed, delivered, outbox_at, payload, taken
from tests.support.outboxes import put as put_events
from tests.support.results import IDENTITY


def _seen(*links: FakeLink) -> list[int]:
    return [document["seq"] for link in links for document in link.documents("event")]


@contextmanager
def _door(folder: Path, *links: FakeLink, **changes: Any) -> Iterator[Door]:
    with outbox_at(folder / "events.sqlite", **changes) as events:
        door = door_over(*links, events=events)
        yield door
        door.publisher.close()


@pytest.fixture(autouse=True)
def _what_is_refused_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk.publishing.session.Backoff", lambda: Backoff(0.02, 0.2))


def test_events_that_wait_go_before_results_and_leave_them_a_place(tmp_path: Path) -> None:
    link = FakeLink(window=6, answers=False)
    with outbox_at(tmp_path / "events.sqlite") as events:
        numbers = put_events(events, 30)
        until(lambda: events.is_ready)
        door = door_over(link, events=events)
        put(door.stream, *range(10))
        until(lambda: len([k for k, _ in link.published if k in ("event", "result")]) >= 4)
        # The window is six: four places are for events; the first message of a camera is one.
        kinds = [kind for kind, _ in list(link.published)]
        assert (kinds[0], next(kind for kind in kinds if kind in ("event", "result"))) == ("status", "event")
        assert kinds.count("event") <= 4
        link.answers = True
        until(lambda: door.publisher.stats().events.delivered == 30 and door.publisher.stats().sent == 10)
        assert _seen(link) == numbers
        assert link.most_unanswered <= 6
        door.publisher.close()


def test_what_a_broker_acknowledged_just_before_it_broke_comes_again(tmp_path: Path) -> None:
    crashes = 5
    links = [FakeLink() for _ in range(crashes + 2)]
    with _door(tmp_path, *links) as door:
        numbers = [door.stream.put_event(payload) for _ in range(10)]
        for count, link in enumerate(links[: crashes + 1], start=1):
            until(lambda link=link: len(_seen(link)) == 10)  # type: ignore[misc]
            until(lambda: door.publisher.stats().events.delivered == 10)
            link.drop("the broker crashed, and had written nothing down")
            until(lambda count=count: door.publisher.stats().connects == count + 1)  # type: ignore[misc]
        # One that breaks so often right after its answers is believed at last: they are not sent for ever.
        last = door.stream.put_event(payload)
        until(lambda: door.publisher.stats().events.delivered == 11)
        assert [_seen(link) for link in links] == [numbers] * (crashes + 1) + [[last]]
    with outbox_at(tmp_path / "events.sqlite") as events:
        assert events.waiting == 0


@pytest.mark.parametrize("is_heard", [False, True], ids=["silence", "a sign of life"])
def test_an_answer_counts_once_more_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_heard: bool) -> None:
    """A machine that dies, and whose disk forgets what the broker had answered, ends no connection for a while."""
    links = FakeLink(), FakeLink()
    with _door(tmp_path, *links) as door:
        numbers = [door.stream.put_event(payload) for _ in range(3)]
        until(lambda: door.publisher.stats().events.delivered == 3)
        links[0].answers = False
        monkeypatch.setattr(outbox, "_DOUBT_S", 0.1)
        time.sleep(0.3)
        links[0].is_heard = is_heard
        last = door.stream.put_event(payload)
        until(lambda: not links[0].is_heard and last in _seen(links[0]))
        links[0].drop("connection lost")
        until(lambda: last in _seen(links[1]))
        assert _seen(links[1]) == ([] if is_heard else numbers) + [last]


@pytest.mark.parametrize(("code", "camera"), [(0x87, "hall"), (0x99, "door")])
def test_what_the_broker_never_takes_does_not_hold_up_the_rest(tmp_path: Path, code: int, camera: str) -> None:
    refused: list[int] = []

    def judge(_kind: MessageKind, message: Message) -> tuple[str, int]:
        is_refused = message.topic.endswith(f"event/{camera}") and message.seq in refused
        return ("Not authorized", code) if is_refused else ("", 0)

    link = FakeLink(judge=judge)
    link.answers = False
    with _door(tmp_path, link) as door:
        cameras = [camera if 5 <= index < 8 else "door" for index in range(40)]
        numbers = [door.publisher.put_event(each, payload) for each in cameras]
        refused += numbers[5:8]
        link.answers = True
        until(lambda: door.publisher.stats().events.delivered == 37)
        assert _seen(link) == numbers  # each once
        assert door.publisher.stats().events.lost == Losses(quarantine=3)
        expected = f"did not take an event on edge/v1/default/pi/event/{camera}: Not authorized"
        assert door.publisher.stats().last_error.endswith(expected)
        door.publisher.close()
        assert [s for s in link.documents("state") if "events_refused" in s.get("warnings", {})]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_slip_in_an_acl_costs_no_event(tmp_path: Path, is_late: bool) -> None:
    is_allowed = threading.Event()

    def judge(kind: MessageKind, _message: Message) -> tuple[str, int]:
        return ("Not authorized", 0x87) if kind == "event" and not is_allowed.is_set() else ("", 0)

    def warnings() -> list[str]:
        return [state.get("warnings", {}).get("events_held", "") for state in link.documents("state")]

    link = FakeLink(judge=judge)
    with _door(tmp_path, link) as door:
        if is_late:  # the broker reads its ACL again while the connection lasts
            is_allowed.set()
            door.stream.put_event(payload)
            until(lambda: door.publisher.stats().events.delivered == 1)
            is_allowed.clear()
        numbers = [door.stream.put_event(payload) for _ in range(300)]
        until(lambda: len(_seen(link)) > 40)  # a second window was tried
        stats = door.publisher.stats().events
        assert (stats.waiting, stats.lost.total) == (300, 0)
        until(lambda: "event/door: Not authorized; they wait and are tried again; let this" in warnings()[-1])
        is_allowed.set()
        until(lambda: door.publisher.stats().events.delivered == 300 + is_late)
        assert _seen(link)[-300:] == numbers
        until(lambda: warnings()[-1] == "")


def test_without_answers_results_go_out_and_no_end_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeLink, "acknowledges", lambda _link, _kind: False)
    link = FakeLink()
    with _door(tmp_path, link) as door:
        door.stream.put_event(payload)
        until(lambda: door.publisher._events.is_ready)  # events would go first
        put(door.stream, 1)
        until(lambda: door.publisher.stats().sent == 1)
        began_s = time.monotonic()
        door.publisher.close(2 * WAIT_S)
        assert time.monotonic() - began_s < WAIT_S
        assert (_seen(link), door.publisher.stats().events.waiting) == ([], 1)


def test_an_orderly_end_waits_for_a_disk_that_takes_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    with outbox_at(tmp_path / "events.sqlite") as events:
        door = door_over(FakeLink(error=ConnectionRefusedError()), events=events)
        numbers = committed(events, 1)
        disk.pause_s = 0.6
        numbers.append(door.stream.put_event(payload))
        door.publisher.close(0.9, WAIT_S)
        shutil.copytree(tmp_path, tmp_path / "after")
    with outbox_at(tmp_path / "after" / "events.sqlite") as events:
        assert delivered(events, 2) == numbers


def test_an_end_that_a_disk_does_not_take_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, said = SlowDisk(monkeypatch), list[tuple[str, str]]()
    with outbox_at(tmp_path / "events.sqlite", said=said) as events:
        committed(events, 1)
        disk.may_go.clear()
        put_events(events, 1)
        events.close(0.01)
        assert [name for name, line in said if "did not take the last events" in line] == ["outbox_disk"]
        disk.may_go.set()


# How often a refused event is tried, and how long the others wait for that.

WINDOW = 18  # of twenty, two are for results
REFUSED = b"refused"


@contextmanager
def _sending(folder: Path, hold: Backoff, refused: set[int]) -> Iterator[tuple[Sender, EventOutbox]]:
    """A sender with forty events, of which the broker refuses some."""
    with outbox_at(folder / "events.sqlite") as events:
        settings = MqttSettings(host="broker", port=1883, device="pi")
        warnings = PublishWarnings(DeviceState(IDENTITY, {}, RetainedPublisher(settings.topics)), lambda _line: None)
        for number in range(40):
            payload = REFUSED if number in refused else b"%d" % number
            events.put(TOPIC + "door", "door", lambda _, payload=payload: payload)
        assert events.wait_committed(WAIT_S)
        until(lambda: events.is_ready)
        yield Sender(Queues(events, settings.channels), warnings, 60.0, hold), events


def _link(code: int) -> FakeLink:
    link = FakeLink(judge=lambda _, message: ("refused", code) if message.payload == REFUSED else ("", 0))
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


@pytest.mark.parametrize("refused", [{3}, {3, 5}, set(range(40))], ids=["one", "two", "all"])
def test_each_is_tried_eight_times_and_put_aside(tmp_path: Path, refused: set[int]) -> None:
    with _sending(tmp_path, Backoff(0.001, 0.002), refused) as (sender, events):
        link = _link(0x83)
        while events.waiting:
            _round(sender, events, link)
            assert len(link.published) <= 40 * 8, "it goes on for ever"
        assert events.stats().lost == Losses(quarantine=len(refused))
        assert [m.payload for _, m in link.published].count(REFUSED) == 8 * len(refused)
        good = [m.payload for _, m in link.published if m.payload != REFUSED]
        assert good == [b"%d" % number for number in range(40) if number not in refused]


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
        assert (steps, events.is_held, events.waiting) == ([3600.0], True, 40)


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
        assert (sent, len(sent)) == (sorted(sent), 41)


def test_what_is_refused_during_a_write_stays_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, copy = tmp_path / "events.sqlite", tmp_path / "copy.sqlite"
    with outbox_at(path) as outbox:
        numbers = put_events(outbox, 1)
        [event] = taken(outbox, 1)
        commit, keep_bounds, is_refused = EventStore.commit, Writer._keep_bounds, threading.Event()

        def refused_meanwhile(writer: Writer, store: EventStore) -> None:
            if not is_refused.is_set():
                outbox.reject(event, "Not authorized (reason code 135)")
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
        put_events(outbox, 1)
        until(copy.exists)
    with closing(sqlite3.connect(copy)) as sql:
        assert (numbers[0],) in [*sql.execute("SELECT seq FROM event"), *sql.execute("SELECT seq FROM quarantine")]
