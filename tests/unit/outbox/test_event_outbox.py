"""The event outbox: what is acknowledged, what comes in which order, and what is lost with which name."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from edge_sdk.publishing.durable import EventOutbox, Losses
from tests.support.outboxes import TOPIC, WAIT_S, delivered, outbox_at, payload, put, taken, until


def _killed(path: Path, to: Path) -> Path:
    """The file and its log as a kill leaves them."""
    to.mkdir()
    for name in path.parent.glob(path.name + "*"):
        shutil.copy(name, to)
    return to / path.name


def _takes_all(outbox: EventOutbox, numbers: list[int]) -> bool:
    while (event := outbox.take()) is not None:
        numbers.append(event.seq)
    return True


def test_events_come_in_order_and_no_file_is_made_before_the_first(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events.sqlite"
    with outbox_at(path) as outbox:
        assert not path.parent.exists()
        numbers = put(outbox, 2000)
        assert delivered(outbox, 2000) == numbers == list(range(numbers[0], numbers[0] + 2000))
        assert (outbox.waiting, outbox.stats().delivered, outbox.stats().lost.total) == (0, 2000, 0)
    assert path.stat().st_mode & 0o077 == 0  # what cameras see is nobody else's


def test_an_orderly_end_leaves_no_gap_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    numbers: list[int] = []
    for start in range(4):
        with outbox_at(path, wall_s=lambda: 1000.0) as outbox:
            numbers += put(outbox, 30)
            if start == 1:
                assert delivered(outbox, 40) == numbers[:40]
    assert numbers == list(range(1_000_000_000, 1_000_000_120))
    with outbox_at(path) as outbox:
        assert outbox.waiting == 80
        assert delivered(outbox, 80) == numbers[40:]


@pytest.mark.parametrize("wall_s", [0.0, 1000.0, 2e9], ids=["before the first number", "the same", "later"])
def test_after_a_kill_all_that_was_acknowledged_is_there_and_no_number_comes_again(
    tmp_path: Path, wall_s: float
) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path, wall_s=lambda: 1000.0) as outbox:
        numbers = put(outbox, 500)
        assert outbox.wait_committed(WAIT_S)
        assert outbox.committed_seq("door") == numbers[-1]
        assert outbox.committed_seq("yard") is None
        copy = _killed(path, tmp_path / "after")
        later = put(outbox, 100)  # nobody but this process will know of them
    with outbox_at(copy, wall_s=lambda: wall_s) as outbox:
        [number] = put(outbox, 1)
        assert number > later[-1]
        assert delivered(outbox, 501) == [*numbers, number]


def test_what_was_delivered_just_before_a_kill_comes_again_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path) as outbox:
        numbers = put(outbox, 50)
        assert outbox.wait_committed(WAIT_S)
        copy = _killed(path, tmp_path / "after")
        delivered(outbox, 20)
    with outbox_at(copy) as outbox:
        assert [(e.seq, e.payload, e.topic) for e in taken(outbox, 50)] == [
            (n, payload(n), TOPIC + "door") for n in numbers
        ]
    with outbox_at(path) as outbox:  # the one that was not killed has told the file
        assert delivered(outbox, 30) == numbers[20:]


def test_what_did_not_arrive_is_the_next_again(tmp_path: Path) -> None:
    with outbox_at(tmp_path / "events.sqlite") as outbox:
        numbers = put(outbox, 10)
        events = taken(outbox, 5)
        outbox.deliver(events[1])
        outbox.end_connection(is_orderly=False)
        assert delivered(outbox, 10) == numbers  # the one that was answered a moment ago, too
        until(lambda: outbox.waiting == 0)


def test_the_file_keeps_its_bound_and_the_camera_that_fills_it_pays(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path, max_mb=1) as outbox:
        quiet = put(outbox, 20, "quiet", size=1000)
        loud = []
        for _ in range(40):
            loud += put(outbox, 100, "loud", size=1000)
            assert outbox.wait_committed(WAIT_S)
            assert path.stat().st_size <= 1_000_000
        stats = outbox.stats()
        assert stats.lost == Losses(overflow=4020 - stats.waiting)
        assert 500 < stats.waiting < 1000
        events = taken(outbox, stats.waiting)
        assert [e.seq for e in events if e.camera == "quiet"] == quiet
        assert [e.seq for e in events if e.camera == "loud"] == loud[20 - stats.waiting :]  # the newest, in order


def test_large_events_fit_into_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    with outbox_at(path, max_mb=1) as outbox:
        for _ in range(30):
            put(outbox, 10, size=20_000)
            assert outbox.wait_committed(WAIT_S)
        assert path.stat().st_size <= 1_000_000
        assert outbox.stats().is_durable
        assert outbox.stats().lost.overflow == 300 - outbox.waiting > 200
    assert outbox.stats().is_durable  # as it was to the last


def test_age_is_the_time_that_the_machine_was_on(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    now_s = 50.0
    with outbox_at(path, max_age_s=100.0, now_s=lambda: now_s) as outbox:
        put(outbox, 3)
        assert outbox.wait_committed(WAIT_S)
    now_s = 120.0  # 70 s later in the same boot
    with outbox_at(path, max_age_s=100.0, now_s=lambda: now_s) as outbox:
        put(outbox, 4)
        assert outbox.wait_committed(WAIT_S)
        assert outbox.waiting == 7
    now_s = 20.0  # another boot: whatever was in between does not count
    with outbox_at(path, boot_id="other", max_age_s=100.0, now_s=lambda: now_s) as outbox:
        put(outbox, 5)
        assert outbox.wait_committed(WAIT_S)
        assert outbox.waiting == 12
    now_s = 51.0
    with outbox_at(path, boot_id="other", max_age_s=100.0, now_s=lambda: now_s) as outbox:
        until(lambda: outbox.stats().lost == Losses(age=3))
        assert outbox.waiting == 9


@pytest.mark.parametrize("leap_s", [-1e9, 1e9])
def test_a_wall_clock_that_leaps_loses_nothing_and_repeats_no_number(tmp_path: Path, leap_s: float) -> None:
    path = tmp_path / "events.sqlite"
    wall_s = 1.7e9
    with outbox_at(path, wall_s=lambda: wall_s) as outbox:
        numbers = put(outbox, 10)
        wall_s += leap_s
        numbers += put(outbox, 10)
    with outbox_at(path, wall_s=lambda: wall_s) as outbox:
        numbers += put(outbox, 10)
        assert delivered(outbox, 30) == numbers == sorted(set(numbers))


def test_an_event_that_is_refused_is_kept_beside_the_others(tmp_path: Path) -> None:
    path, said = tmp_path / "events.sqlite", []
    with outbox_at(path, said=said) as outbox:
        numbers = put(outbox, 3)
        first, second, third = taken(outbox, 3)
        outbox.refuse(second, "Packet too large")
        outbox.deliver(third)
        outbox.give_back(first, 0.0)
        assert delivered(outbox, 1) == numbers[:1]
        assert outbox.stats().lost == Losses(quarantine=1)
    assert [line for name, line in said if name == "events_refused" and line] == [
        f"the broker does not take events of {TOPIC}door: Packet too large; put aside, they are not sent; its log "
        "may say what to allow or to raise there"
    ]
    with outbox_at(path) as outbox:
        assert outbox.waiting == 0  # and it is not tried again
    import sqlite3

    with sqlite3.connect(path) as sql:
        assert sql.execute("SELECT camera, seq, reason FROM quarantine").fetchall() == [
            ("door", numbers[1], "Packet too large")
        ]
    sql.close()


def test_without_a_file_events_wait_in_memory_and_the_newest_are_kept() -> None:
    with outbox_at(None, max_memory_bytes=1_000_000) as outbox:
        numbers = put(outbox, 1000, size=10_000)
        found: list[int] = []
        until(lambda: _takes_all(outbox, found) and found[-1:] == numbers[-1:])
        assert found == sorted(found)
        assert len(found) < 300
        assert outbox.stats().lost == Losses(memory=1000 - len(found))
        assert not outbox.stats().is_durable
        assert not outbox.wait_committed(0.01)


def test_an_event_that_the_file_could_never_hold_does_not_hold_up_the_others(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    with outbox_at(tmp_path / "events.sqlite", said=said, max_mb=1) as outbox:
        [first] = put(outbox, 1)
        assert outbox.wait_committed(WAIT_S)
        put(outbox, 1, size=2_000_000)
        assert not outbox.wait_committed(WAIT_S)  # it is lost
        assert outbox.wait_committed(WAIT_S)  # and nobody waits for it, though it is alone
        [last] = put(outbox, 1)
        assert outbox.wait_committed(WAIT_S)
        assert delivered(outbox, 2) == [first, last] == [first, first + 2]
        assert outbox.stats().lost == Losses(quarantine=1)
        assert "too many to wait; make it smaller, or raise [outbox] max_mb" in said[0][1]


def test_an_event_that_cannot_be_encoded_leaves_no_gap() -> None:
    with outbox_at(None) as outbox:
        [first] = put(outbox, 1)
        with pytest.raises(OverflowError):
            outbox.put(TOPIC + "door", "door", lambda seq: seq.to_bytes(1, "big"))
        assert put(outbox, 1) == [first + 1]


def test_where_no_thread_can_be_started_events_wait_for_one(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    with outbox_at(tmp_path / "events.sqlite", said=said) as outbox:
        before = threading.stack_size(2**46)  # more than there is
        try:
            numbers = put(outbox, 2)
        finally:
            threading.stack_size(before)
        assert [name for name, line in said if "can't start new thread" in line] == ["outbox_disk"]
        numbers += put(outbox, 1)
        assert outbox.wait_committed(WAIT_S)
        assert delivered(outbox, 3) == numbers
        assert said[-1] == ("outbox_disk", "")


def test_what_is_put_right_before_the_end_is_on_disk(tmp_path: Path) -> None:
    for number in range(20):
        with outbox_at(tmp_path / "events.sqlite", wall_s=lambda: 1.0) as outbox:
            assert put(outbox, 1) == [1_000_000 + number]
    with outbox_at(tmp_path / "events.sqlite") as outbox:
        assert outbox.waiting == 20
