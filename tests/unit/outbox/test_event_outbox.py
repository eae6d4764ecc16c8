"""The event outbox: what is acknowledged, in which order it comes, what is lost with which name, and its bounds."""

import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.core.threads import Backoff
from edge_sdk.outbox.event import Losses, OutboxSettings, OutboxWarnings, QueuedEvent
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.outbox.store import EventStore
from tests.support import outboxes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.sqlite"


def _killed(path: Path, to: Path) -> Path:
    to.mkdir()
    for name in path.parent.glob(path.name + "*"):
        shutil.copy(name, to)
    return to / path.name


def test_events_come_in_order_and_no_file_is_made_before_the_first(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events.sqlite"
    with outboxes.outbox_at(path) as outbox:
        assert not path.parent.exists()
        numbers = outboxes.put(outbox, 2000)
        assert outboxes.delivered(outbox, 2000) == numbers == list(range(numbers[0], numbers[0] + 2000))
        assert (outbox.waiting, outbox.stats().delivered, outbox.stats().lost.total) == (0, 2000, 0)
    assert path.stat().st_mode & 0o077 == 0  # what cameras see is nobody else's


def test_an_orderly_end_leaves_no_gap_and_loses_nothing(path: Path) -> None:
    numbers: list[int] = []
    for start in range(4):
        with outboxes.outbox_at(path, wall_s=lambda: 1000.0) as outbox:
            numbers += outboxes.put(outbox, 30)
            if start == 1:
                assert outboxes.delivered(outbox, 40) == numbers[:40]
    assert numbers == list(range(1_000_000_000, 1_000_000_120))
    with outboxes.outbox_at(path) as outbox:
        assert outbox.waiting == 80
        assert outboxes.delivered(outbox, 80) == numbers[40:]


@pytest.mark.parametrize("wall_s", [0.0, 1000.0, 2e9], ids=["before the first number", "the same", "later"])
def test_a_kill_takes_nothing_acknowledged_and_no_number_comes_again(tmp_path: Path, path: Path, wall_s: float) -> None:
    with outboxes.outbox_at(path, wall_s=lambda: 1000.0) as outbox:
        numbers = outboxes.committed(outbox, 500)
        copy = _killed(path, tmp_path / "after")
        later = outboxes.put(outbox, 100)  # nobody but this process will know of them
    with outboxes.outbox_at(copy, wall_s=lambda: wall_s) as outbox:
        [number] = outboxes.put(outbox, 1)
        assert number > later[-1]
        assert number >= wall_s * 1_000_000  # also above what a disk that went back in time has forgotten
        found = [(event.seq, event.payload, event.topic) for event in outboxes.taken(outbox, 501)]
        assert found == [(seq, outboxes.payload(seq), f"{outboxes.TOPIC}door") for seq in (*numbers, number)]


def test_the_file_keeps_its_bound_and_the_camera_that_fills_it_pays(path: Path) -> None:
    with outboxes.outbox_at(path, max_mb=1) as outbox:
        quiet = outboxes.put(outbox, 20, "quiet", size=1000)
        loud = []
        for _ in range(40):
            loud += outboxes.committed(outbox, 100, "loud", size=1000)
            assert path.stat().st_size <= 1_000_000
        stats = outbox.stats()
        assert stats.lost == Losses(overflow=4020 - stats.waiting)
        assert 500 < stats.waiting < 1000
        events = outboxes.taken(outbox, stats.waiting)
        assert [e.seq for e in events if e.camera == "quiet"] == quiet
        assert [e.seq for e in events if e.camera == "loud"] == loud[20 - stats.waiting :]  # the newest, in order


def test_age_is_the_time_that_the_machine_was_on(path: Path) -> None:
    def outbox_of(boot_id: str, now_s: float) -> AbstractContextManager[EventOutbox]:
        return outboxes.outbox_at(path, boot_id=boot_id, max_age_days=100 / 86400, now_s=lambda: now_s)

    # 70 s later in the same boot, and then another boot: whatever was in between does not count.
    for boot_id, now_s, count, waiting in (("boot", 50.0, 3, 3), ("boot", 120.0, 4, 7), ("other", 20.0, 5, 12)):
        with outbox_of(boot_id, now_s) as outbox:
            outboxes.committed(outbox, count)
            assert outbox.waiting == waiting
    with outbox_of("other", 51.0) as outbox:
        outboxes.until(lambda: outbox.stats().lost == Losses(age=3))
        assert outbox.waiting == 9


def test_without_a_file_events_wait_in_memory_and_the_newest_are_kept() -> None:
    with outboxes.outbox_at(None, max_memory_bytes=1_000_000) as outbox:
        numbers = outboxes.put(outbox, 1000, size=10_000)
        found: list[int] = []
        outboxes.until(lambda: outboxes.takes_all(outbox, found) and found[-1:] == numbers[-1:])
        assert found == sorted(found)
        assert len(found) < 300
        assert outbox.stats().lost == Losses(memory=1000 - len(found))
        assert not outbox.stats().is_durable
        assert not outbox.wait_committed(0.01)


def test_an_event_that_cannot_be_encoded_leaves_no_gap() -> None:
    with outboxes.outbox_at(None) as outbox:
        [first] = outboxes.put(outbox, 1)
        with pytest.raises(OverflowError):
            outbox.put(outboxes.TOPIC + "door", "door", lambda seq: seq.to_bytes(1, "big"))
        assert outboxes.put(outbox, 1) == [first + 1]


def test_what_the_broker_has_just_answered_makes_room_before_anything_is_lost(path: Path) -> None:
    with outboxes.outbox_at(path, max_mb=1) as outbox:
        while not outbox.stats().lost.overflow:
            outboxes.committed(outbox, 100, size=300)
        lost = outbox.stats().lost
        outboxes.delivered(outbox, outbox.waiting)
        for _ in range(10):
            numbers = outboxes.committed(outbox, 100, size=300)
            assert outboxes.delivered(outbox, outbox.waiting) == numbers
        assert outbox.stats().lost == lost


def test_what_the_broker_has_is_not_lost_though_an_older_one_comes_again(path: Path) -> None:
    with outboxes.outbox_at(path, max_mb=1) as outbox:
        outboxes.committed(outbox, 40, size=1000)
        first, *others = outboxes.taken(outbox, 18)
        for event in others:
            outbox.deliver(event)
        outbox.give_back(first, 0.0)  # refused for now: from it on all is still in the file
        while outbox.stats().lost.overflow < 100:
            outboxes.committed(outbox, 100, size=1000)
        stats = outbox.stats()
        assert stats.put == stats.delivered + stats.waiting + stats.lost.total
        assert len(outboxes.delivered(outbox, outbox.waiting)) == stats.waiting
        assert outbox.stats().waiting == 0
        assert outbox.take() is None


def test_what_only_memory_has_at_the_end_is_lost_and_said(path: Path) -> None:
    said: list[tuple[str, str]] = []
    path.mkdir()  # no file can be there
    with outboxes.outbox_at(path, said=said) as outbox:
        outboxes.put(outbox, 5)
        outboxes.until(lambda: outbox.is_ready)
        outbox.deliver(outboxes.taken(outbox, 1)[0])
        outbox.end_connection(is_orderly=True)
        outbox.close(outboxes.WAIT_S)
        assert outbox.stats().lost.total == outbox.stats().lost.memory == 4
    assert ("events_lost", "4 events are lost since the start: 4 in memory only") in said


def test_what_is_put_aside_for_good_is_bounded_by_bytes_and_counted(path: Path) -> None:
    with outboxes.outbox_at(path, max_mb=1) as outbox:
        numbers = outboxes.put(outbox, 40, size=5000)
        for event in outboxes.taken(outbox, 40):
            outbox.reject(event, "Payload format invalid")
        assert outbox.stats().lost == Losses(quarantine=40)
    with closing(sqlite3.connect(path)) as sql:
        kept = [seq for (seq,) in sql.execute("SELECT seq FROM quarantine ORDER BY id")]
    assert kept == numbers[-6:]  # of 31,250 bytes


@pytest.mark.parametrize("waiting", [0, 8000], ids=["empty by then", "nearly full"])
def test_a_file_whose_bound_was_lowered_is_made_smaller(path: Path, waiting: int) -> None:
    with outboxes.outbox_at(path, max_mb=8) as outbox:
        numbers = outboxes.committed(outbox, 8000, size=500)
        assert outboxes.delivered(outbox, 8000 - waiting) == numbers[: 8000 - waiting]
    assert path.stat().st_size > 4_000_000
    with outboxes.outbox_at(path, max_mb=1.5) as outbox:
        new = outboxes.committed(outbox, 10, size=500)
        outboxes.until(lambda: path.stat().st_size < 1_500_000)
        left = outbox.waiting
        assert outboxes.delivered(outbox, left) == [*numbers, *new][-left:]
        assert outbox.stats().lost == Losses(overflow=waiting + 10 - left)
        for _ in range(40):  # and it stays so
            outboxes.committed(outbox, 100, size=500)
    assert path.stat().st_size < 1_500_000
    with outboxes.outbox_at(path, max_mb=1.5) as outbox:
        assert outbox.stats().set_aside == 0


def test_a_week_of_losses_is_a_handful_of_lines_and_a_later_loss_is_said_at_once() -> None:
    now_s, lines = 0.0, list[str]()
    complaints = OutboxWarnings(lambda: now_s)
    complaints.listen(lambda _, line: lines.append(line))
    for minute in range(7 * 24 * 60):
        now_s = minute * 60.0
        complaints.lost(Losses(overflow=1 + minute))
    assert lines[0].startswith("1 event is lost")
    assert 10 < len(lines) < 25
    complaints.lost(Losses(overflow=10**6))
    now_s += 2 * 86400
    count = len(lines)
    complaints.lost(Losses(overflow=10**6 + 1))
    assert len(lines) == count + 1


def test_a_refusal_is_said_until_the_broker_takes_an_event_of_that_topic_a_minute_later() -> None:
    now_s, lines = 0.0, list[str]()
    warnings = OutboxWarnings(lambda: now_s)
    warnings.listen(lambda _, line: lines.append(line))
    for _ in range(3):  # said once
        warnings.rejected(outboxes.TOPIC + "door", "Not authorized")
    warnings.delivered(outboxes.TOPIC + "door")
    now_s = 61.0
    warnings.delivered(outboxes.TOPIC + "yard")
    [line] = lines
    assert "event/door: Not authorized; put aside, let this device write there" in line
    warnings.delivered(outboxes.TOPIC + "door")
    assert lines[1:] == [""]


# The file is opened beside the streams, and what `wait_committed` promises of it.


def _outbox(path: Path, **more: Any) -> EventOutbox:
    return EventOutbox(OutboxSettings(commit_s=0.002), path, "boot", **more)


@contextmanager
def _opening(path: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Iterator[tuple[EventOutbox, threading.Event]]:
    """An outbox on a disk that hangs when it is read first; the event lets it."""
    may_go, is_asked, real = threading.Event(), threading.Event(), EventStore.__init__

    def delayed(*arguments: Any) -> None:
        is_asked.set()
        assert may_go.wait(outboxes.WAIT_S)
        real(*arguments)

    monkeypatch.setattr(EventStore, "__init__", delayed)
    outbox = _outbox(path, **more)
    try:
        assert is_asked.wait(outboxes.WAIT_S)
        yield outbox, may_go
    finally:
        may_go.set()
        outbox.close(outboxes.WAIT_S)


def test_an_end_before_the_file_is_open_tells_what_waits_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with outboxes.outbox_at(path) as outbox:
        outboxes.put(outbox, 1)
    with _opening(path, monkeypatch) as (outbox, may_go):
        outboxes.put(outbox, 4)
        ending = threading.Thread(target=outbox.close, args=(outboxes.WAIT_S,))
        ending.start()
        outboxes.until(outbox._closing.is_set)
        may_go.set()
        ending.join()
        assert (outbox.stats().waiting, outbox.stats().is_durable) == (5, True)


def test_a_disk_that_hangs_at_the_start_holds_up_nobody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 1500
    with outboxes.outbox_at(path, wall_s=lambda: 1000.0) as outbox:
        numbers = outboxes.put(outbox, 5)
    with _opening(path, monkeypatch, wall_s=lambda: 0.0) as (outbox, may_go):
        encoders: set[str] = set()

        def encode(seq: int) -> bytes:
            encoders.add(threading.current_thread().name)
            return outboxes.payload(seq)

        assert [outbox.put(outboxes.TOPIC + "door", "door", encode) for _ in range(count)] == [None] * count
        assert (outbox.waiting, outbox.stats().put, outbox.wait_committed(0.01)) == (count, count, False)
        may_go.set()
        assert outbox.wait_committed(outboxes.WAIT_S)
        assert outbox.waiting == count + 5
        assert outboxes.delivered(outbox, count + 5) == list(range(numbers[0], numbers[0] + count + 5))
        assert encoders == {"edge-outbox"}  # and not who put them


@pytest.mark.parametrize("is_known", [True, False])
def test_a_successor_has_the_file_after_its(path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
    said = list[tuple[str, str]]()
    disk, first = outboxes.SlowDisk(monkeypatch), _outbox(path)
    put_first = [first.put(outboxes.TOPIC + "door", "door", outboxes.payload)]
    assert first.wait_committed(outboxes.WAIT_S)
    disk.may_go.clear()
    put_first.append(first.put(outboxes.TOPIC + "door", "door", outboxes.payload))
    outboxes.until(lambda: not first.wait_committed(0.0))
    first.close(0.01)
    second = EventOutbox(OutboxSettings(), path, "boot", retry=Backoff(0.01, 0.05), before=first if is_known else None)
    second.listen(lambda *warning: said.append(warning))
    outboxes.put(second, 1)
    assert not second.wait_committed(0.2)
    disk.may_go.set()
    assert second.wait_committed(outboxes.WAIT_S)
    assert {*outboxes.delivered(second, 3)} > {*put_first}
    assert bool(said) is not is_known
    second.close(outboxes.WAIT_S)


def test_what_waits_for_a_disk_that_hangs_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with outboxes.outbox_at(path) as outbox:
        numbers = outboxes.put(outbox, 1)
    with _opening(path, monkeypatch) as (outbox, may_go):
        for number in range(10_003):
            outbox.put(outboxes.TOPIC + "door", "door", lambda _, number=number: b"%d" % number)  # type: ignore[misc]
        stats = outbox.stats()
        assert (stats.put, stats.waiting, stats.lost) == (10_003, 10_000, Losses(memory=3))
        assert not outbox.wait_committed(0.01)  # not in time: of what is lost nothing is told yet
        may_go.set()
        assert [outbox.wait_committed(outboxes.WAIT_S) for _ in range(2)] == [False, True]
        first, *others = outboxes.taken(outbox, 3)
        assert first.seq == numbers[0]
        assert [event.payload for event in others] == [b"3", b"4"]
        assert outbox.waiting == 10_001


def test_each_thread_is_told_once_of_what_was_lost_before_it_was_on_disk(path: Path) -> None:
    said = list[tuple[str, str]]()
    with outboxes.outbox_at(path, max_mb=1, said=said) as outbox, ThreadPoolExecutor(1) as other:
        assert other.submit(outbox.wait_committed, outboxes.WAIT_S).result()
        [large] = outboxes.put(outbox, 1, size=2_000_000)
        outboxes.until(lambda: outbox.stats().lost == Losses(quarantine=1))  # though it is alone
        outboxes.put(outbox, 1)
        found = [outbox.wait_committed(outboxes.WAIT_S), outbox.wait_committed(outboxes.WAIT_S)]
        found += [other.submit(outbox.wait_committed, outboxes.WAIT_S).result() for _ in range(2)]
        assert found == [False, True, False, True]
        assert outboxes.delivered(outbox, 1) == [large + 1]
        assert "too many to wait; make it smaller, or raise [outbox] max_mb" in said[0][1]


def test_without_a_disk_what_the_broker_has_is_safe_and_what_it_refused_is_not() -> None:
    with outboxes.outbox_at(None) as outbox:
        outboxes.put(outbox, 2)
        assert not outbox.wait_committed(0.01)
        outboxes.delivered(outbox, 2)
        outbox.end_connection(is_orderly=True)
        assert outbox.wait_committed(outboxes.WAIT_S)
        outboxes.put(outbox, 1)
        outbox.reject(outboxes.taken(outbox, 1)[0], "Not authorized")
        assert not outbox.wait_committed(outboxes.WAIT_S)


def test_events_that_come_together_are_one_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits, commit = list[int](), EventStore.commit

    def counted(store: EventStore, events: Sequence[QueuedEvent], *others: Any) -> None:
        commits.append(len(events))
        commit(store, events, *others)

    monkeypatch.setattr(EventStore, "commit", counted)
    with outboxes.outbox_at(path, commit_s=2.0) as outbox:
        outboxes.committed(outbox, 1)
        commits.clear()
        outboxes.put(outbox, 1)
        outboxes.until(lambda: not outbox._is_idle)
        outboxes.put(outbox, 60)
        assert outbox.wait_committed(outboxes.WAIT_S)
        assert commits == [61]


def test_a_held_event_that_could_not_be_encoded_is_told_though_nothing_was_put_since(path: Path) -> None:
    outbox, said = _outbox(path), list[tuple[str, str]]()
    outbox.listen(lambda *warning: said.append(warning))
    outbox.limit(0.001)
    try:
        assert outbox.put(outboxes.TOPIC + "door", "door", outboxes.payload) is not None
        assert outbox.put(outboxes.TOPIC + "door", "door", lambda seq: seq.to_bytes(1, "big")) is None
        found = [outbox.wait_committed(outboxes.WAIT_S)]  # no rate is waited for
        outbox.release_held()
        found += [outbox.wait_committed(outboxes.WAIT_S) for _ in range(2)]
        assert found == [True, False, True]
        [(name, line)] = said
        assert (name, line.partition(": ")[0]) == ("event_encoding", "an event is left out that cannot be encoded")
    finally:
        outbox.close(outboxes.WAIT_S)


def test_what_an_earlier_process_left_and_the_broker_refuses_is_nobodys_loss_here(path: Path) -> None:
    with outboxes.outbox_at(path) as outbox:
        outboxes.put(outbox, 3)
    with outboxes.outbox_at(path) as outbox, ThreadPoolExecutor(1) as other:
        outbox.reject(outboxes.taken(outbox, 1)[0], "Payload format invalid")
        outboxes.put(outbox, 1)
        assert other.submit(outbox.wait_committed, outboxes.WAIT_S).result()
