"""Every event that a damaged file, a log after a kill or a failing disk loses is counted."""

import math
import os
import random
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edge_sdk.core.threads import Backoff
from edge_sdk.outbox import recovery
from edge_sdk.outbox.event import Losses, OutboxSettings, OutboxWarnings
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.outbox.queue import OutboxQueue, SequenceNumbers
from edge_sdk.outbox.recovery import open_store
from edge_sdk.outbox.store import AgeClock, EventStore, unsealed
from edge_sdk.outbox.writer import Writer
from tests.support import outboxes

_PAGE, _LOG_HEAD, _FRAME = 4096, 32, 24 + 4096


def _record(path: Path) -> Path:
    return path.with_name(path.name + "-committed")


def _flip(path: Path, place: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= mask
    path.write_bytes(data)


def _flip_middle(path: Path) -> None:
    _flip(outboxes.log_of(path), outboxes.log_of(path).stat().st_size // 2)


def _commits(outbox: EventOutbox, times: int = 40, count: int = 10, size: int = 80) -> None:
    for time in range(times):
        outboxes.committed(outbox, count, "yard" if time % 3 else "door", size)


def _life(folder: Path, live: Callable[[EventOutbox], object], *, first: int = 0) -> Path:
    """The file after a kill; `first` events are in the file itself, the others in its log alone."""
    path = folder / "life" / "events.sqlite"
    if first:
        with outboxes.outbox_at(path, max_mb=1) as outbox:
            outboxes.committed(outbox, first, size=80)
    with outboxes.outbox_at(path, max_mb=1) as outbox:
        live(outbox)
        outboxes.until(lambda: not outbox._queue.has_new and outbox._is_idle)  # nothing is written any more
        return Path(shutil.copytree(path.parent, path.parent.with_name("killed"))) / path.name


def _deliver_some(outbox: EventOutbox) -> None:
    _commits(outbox, 6)
    outboxes.delivered(outbox, 35)
    outbox.end_connection(is_orderly=True)
    _commits(outbox, 3)


def _refuse_some(outbox: EventOutbox) -> None:
    _commits(outbox, 6)
    for number, event in enumerate(outboxes.taken(outbox, 30)):
        if number % 3 == 0:
            outbox.reject(event, "Packet too large")
    outbox.end_connection(is_orderly=False)  # the others are not answered
    _commits(outbox, 3)


def _overflow(outbox: EventOutbox) -> None:
    outboxes.put(outbox, 20, "quiet", 80)
    while not outbox.stats().lost.overflow:
        outboxes.committed(outbox, 100, size=5000)
    _commits(outbox, 3, 5, 80)


class Life(NamedTuple):
    folder: Path
    numbers: set[int]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> list[Life]:
    found = []
    for live, first in (
        (lambda outbox: _commits(outbox, 12), 0),
        (lambda outbox: _commits(outbox, 12), 90),
        (lambda outbox: _commits(outbox, 8, 2, 9000), 90),  # more than a page each
        (_deliver_some, 20),
        (_refuse_some, 90),
        (_overflow, 0),
    ):
        path = _life(tmp_path_factory.mktemp("life"), live, first=first)
        whole = Path(shutil.copytree(path.parent, path.parent.with_name("whole"))) / path.name
        with outboxes.outbox_at(whole, max_mb=1) as outbox:
            found.append(Life(path.parent, {event.seq for event in outboxes.deliver_all(outbox)}))
            assert outbox.stats().set_aside == 0
    return found


def _damage(rng: random.Random, path: Path) -> str:
    """Flip bits, cut the end off, or zero or swap pages of the file or of its log; says what was done."""
    target = rng.choice([path, outboxes.log_of(path)])
    data = bytearray(target.read_bytes())
    head, page = (_LOG_HEAD, _FRAME) if target == outboxes.log_of(path) else (0, _PAGE)
    first, second = (head + page * rng.randrange((len(data) - head) // page) for _ in range(2))
    what, at = rng.choice(["flip", "flips", "cut", "zeros to the end", "zeros", "swap"]), rng.randrange(len(data))
    if what in ("flip", "flips"):
        for _ in range(1 if what == "flip" else rng.randrange(2, 20)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif what == "cut":
        del data[at:]
    elif what == "zeros to the end":
        data[at:] = bytes(len(data) - at)
    elif what == "zeros":
        data[first : first + page] = bytes(page)
    else:
        one, other = data[first : first + page], data[second : second + page]
        data[first : first + page], data[second : second + page] = other, one
    target.write_bytes(data)
    return f"{what} in {target.name}"


@pytest.mark.parametrize(
    ("seed", "count"), [(15, 40), *(pytest.param(seed, 500, marks=pytest.mark.long) for seed in range(16, 22))]
)
def test_of_random_damage_nothing_is_missing_that_is_not_counted(
    tmp_path: Path, lives: list[Life], seed: int, count: int
) -> None:
    rng, missing, expected = random.Random(seed), 0, 0
    with outboxes.folder_in_memory(tmp_path) as folder:
        for number in range(count):
            life = lives[-1 if number % 20 == 0 else rng.randrange(len(lives) - 1)]  # the last is of a megabyte
            path = Path(shutil.copytree(life.folder, folder / "damaged")) / "events.sqlite"
            lost = _open_and_check(path, life.numbers, f"{number}: {_damage(rng, path)}")
            missing, expected = missing + lost, expected + len(life.numbers)
            shutil.rmtree(path.parent)
    assert missing < 0.2 * expected  # most of it in files of which a part was cut off


def _open_and_check(path: Path, expected: set[int], what: str) -> int:
    with outboxes.outbox_at(path, max_mb=1) as outbox:
        found = outboxes.deliver_all(outbox)
        stats = outbox.stats()
    numbers = {event.seq for event in found}
    assert all(event.payload == outboxes.payload(event.seq, len(event.payload)) for event in found), what
    assert len(numbers) == len(found), what
    assert numbers <= expected, what
    assert stats.lost == Losses(disk=len(expected) - len(numbers)), what
    assert (stats.put, stats.restored, stats.waiting) == (0, len(expected), 0), what
    assert stats.restored == stats.delivered + stats.lost.total, what
    return stats.lost.disk


def _content(path: Path) -> dict[str, bytes]:
    return {name: (path.parent / name).read_bytes() for name in (path.name, outboxes.log_of(path).name)}


def test_a_bit_that_flips_in_the_log_costs_the_event_that_it_is_in(tmp_path: Path) -> None:
    def live(outbox: EventOutbox) -> None:
        _commits(outbox)
        outboxes.committed(outbox, 1, "last", 80)

    path, said = _life(tmp_path, live), list[tuple[str, str]]()
    log = outboxes.log_of(path).read_bytes()
    last = max(re.findall(rb'{"seq":\d+', log))  # which is in no other frame
    _flip(outboxes.log_of(path), log.index(last))
    _flip(outboxes.log_of(path), _LOG_HEAD + 24 + 10)  # of the first frame, where SQLite stops
    with outboxes.outbox_at(path, said=said) as outbox:
        assert len(outboxes.deliver_all(outbox)) == 400
        assert outbox.stats().lost == Losses(disk=1)
    assert "400 events were read from it" in dict(said)["outbox_damaged"]
    assert dict(said)["events_lost"] == "1 event is lost since the start: 1 on a damaged disk"


@pytest.mark.parametrize(
    "change",
    [
        lambda record, _: record.unlink(),
        lambda record, _: _flip(record, 100),
        lambda record, older: record.write_bytes(older),
    ],
    ids=["removed", "flipped", "older than the file"],
)
def test_a_record_without_the_last_commit_is_no_loss(tmp_path: Path, change: Callable[[Path, bytes], object]) -> None:
    older = b""

    def live(outbox: EventOutbox) -> None:
        nonlocal older
        _commits(outbox, 3)
        older = _record(tmp_path / "life" / "events.sqlite").read_bytes()
        _commits(outbox, 3)

    path = _life(tmp_path, live)
    change(_record(path), older)
    with outboxes.outbox_at(path) as outbox:
        assert len(outboxes.deliver_all(outbox)) == 60
        assert (outbox.stats().lost, outbox.stats().set_aside) == (Losses(), 0)


def test_damage_before_the_end_of_the_log_is_noticed_without_a_record(tmp_path: Path) -> None:
    path = _life(tmp_path, _commits)
    _record(path).unlink()
    _flip_middle(path)
    with outboxes.outbox_at(path) as outbox:
        assert len(outboxes.deliver_all(outbox)) + outbox.stats().lost.disk == 400
        assert outbox.stats().set_aside == 1


def test_what_a_kill_kept_from_being_committed_is_no_loss(tmp_path: Path) -> None:
    path = _life(tmp_path, _commits)
    size = outboxes.log_of(path).stat().st_size
    with closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("PRAGMA cache_size = 1")  # what is changed is written before it is committed
        sql.execute("BEGIN")
        state = unsealed(sql.execute("SELECT body FROM state").fetchone()[0])
        state.number += 1
        sql.execute("UPDATE state SET body = ?", (state.sealed(),))
        sql.executemany(
            "INSERT INTO event VALUES (?, 'door', 1, 1.0, 't', zeroblob(3000), 'crc')", [(n,) for n in range(900, 950)]
        )
        copy = Path(shutil.copytree(path.parent, tmp_path / "again")) / path.name
    assert outboxes.log_of(copy).stat().st_size > size + 100_000
    with outboxes.outbox_at(copy) as outbox:
        assert len(outboxes.deliver_all(outbox)) == 400
        assert (outbox.stats().lost, outbox.stats().set_aside) == (Losses(), 0)


def test_a_file_that_was_removed_between_two_starts_is_counted_and_no_number_comes_again(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    with outboxes.outbox_at(path, wall_s=lambda: 2000.0) as outbox:
        numbers = outboxes.committed(outbox, 30, size=80)
    path.unlink()
    with outboxes.outbox_at(path, wall_s=lambda: 1000.0) as outbox:
        outboxes.committed(outbox, 1)
        [number] = outboxes.put(outbox, 1)
        assert number > numbers[-1]
        stats = outbox.stats()
        assert (stats.lost, stats.restored, stats.waiting) == (Losses(disk=30), 30, 2)


def test_what_was_put_aside_is_in_the_new_file_too_and_damage_of_its_own_is_noticed(tmp_path: Path) -> None:
    def live(outbox: EventOutbox) -> None:
        outboxes.put(outbox, 3)
        for event in outboxes.taken(outbox, 3):
            outbox.reject(event, "Not authorized")
        outboxes.committed(outbox, 1, size=80)

    path = _life(tmp_path, live)
    log = outboxes.log_of(path).read_bytes()
    with closing(sqlite3.connect(Path(shutil.copytree(path.parent, tmp_path / "look")) / path.name)) as sql:
        numbers = [seq for (seq,) in sql.execute("SELECT seq FROM quarantine ORDER BY id")]
    spoilt = b'{"seq":%d}' % numbers[1]
    outboxes.log_of(path).write_bytes(log.replace(spoilt, spoilt.replace(b"seq", b"Seq")))
    with outboxes.outbox_at(path) as outbox:
        assert (len(outboxes.deliver_all(outbox)), outbox.stats().lost) == (1, Losses())
        assert outbox.stats().set_aside == 1
    with closing(sqlite3.connect(path)) as sql:
        assert sql.execute("SELECT seq FROM quarantine ORDER BY id").fetchall() == [(numbers[0],), (numbers[2],)]


def test_a_salvage_that_is_interrupted_anywhere_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _life(tmp_path, _commits, first=200)
    for ending in ("", "-wal"):
        (path.parent / f"{path.name}.damaged{ending}").write_text("of an earlier time")
    _flip_middle(path)
    before = _content(path)
    points: list[Path] = []

    def at_each(owner: Any, name: str, every: int = 1) -> None:
        real, calls = getattr(owner, name), 0

        def snapped(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % every == 0:
                points.append(Path(shutil.copytree(path.parent, tmp_path / f"{len(points)} {name}")) / path.name)
            return real(*arguments, **named)

        patch.setattr(owner, name, snapped)

    with monkeypatch.context() as patch:
        at_each(Path, "replace")
        at_each(Path, "unlink")
        at_each(os, "fsync")
        at_each(recovery, "row_of", 100)  # in the middle of what is copied
        open_store(path, OutboxSettings(folder=path.parent)).close()
    assert len(points) > 12
    for point in [*points, path]:
        with outboxes.outbox_at(point) as outbox:
            found = len(outboxes.deliver_all(outbox))
            assert (outbox.stats().restored, outbox.stats().set_aside) == (600, 1), point
            assert outbox.stats().lost == Losses(disk=600 - found), point
            assert found >= 590, point
        names = {name.name.removeprefix(path.name) for name in point.parent.iterdir()}
        assert names == {"", "-committed", ".damaged", ".damaged-wal"}, point
        aside = point.with_name(f"{path.name}.damaged")
        assert [aside.read_bytes(), outboxes.log_of(aside).read_bytes()] == list(before.values()), point


def test_on_a_full_disk_a_damaged_file_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said, tries, fill = _life(tmp_path, _commits, first=200), list[tuple[str, str]](), [0], recovery._fill
    _flip_middle(path)
    before, has_room = _content(path), threading.Event()

    def filled(sql: sqlite3.Connection, *others: Any) -> None:
        tries[0] += 1
        if not has_room.is_set():
            sql.execute("PRAGMA max_page_count = 9")
        fill(sql, *others)

    monkeypatch.setattr(recovery, "_fill", filled)
    with outboxes.outbox_at(path, said=said) as outbox:
        numbers = outboxes.put(outbox, 5)
        outboxes.until(lambda: tries[0] > 4)
        assert outboxes.delivered(outbox, 2) == numbers[:2]  # from memory
        assert _content(path) == before
        names = {name.name.removeprefix(path.name) for name in path.parent.iterdir()}
        assert names - {".salvage-tmp"} == {"", "-wal", "-committed"}
        assert "disk is full; free some space on this disk" in dict(said)["outbox_disk"]
        has_room.set()
        assert outbox.wait_committed(outboxes.WAIT_S)
        found = {event.seq for event in outboxes.deliver_all(outbox)}
        stats = outbox.stats()
        assert found > set(numbers[2:])
        assert (stats.put, stats.restored, stats.waiting, stats.set_aside) == (5, 600, 0, 1)
        assert stats.lost == Losses(disk=605 - 2 - len(found))
        assert stats.lost.disk < 10


def test_a_device_with_very_many_cameras_loses_no_less_and_no_more(tmp_path: Path) -> None:
    def live(outbox: EventOutbox) -> None:
        for camera in range(80):
            outboxes.put(outbox, 2, f"{camera:099}")
        assert outbox.wait_committed(outboxes.WAIT_S)
        _commits(outbox, 5)

    path = _life(tmp_path, live, first=50)
    with outboxes.outbox_at(Path(shutil.copytree(path.parent, tmp_path / "whole")) / path.name) as outbox:
        assert (outbox.waiting, outbox.stats().set_aside) == (260, 0)
    _flip_middle(path)
    with outboxes.outbox_at(path) as outbox:
        assert len(outboxes.deliver_all(outbox)) + outbox.stats().lost.disk == 260


def test_what_may_have_been_sent_before_says_so(tmp_path: Path) -> None:
    def marks(outbox: EventOutbox, count: int) -> list[bool]:
        return [event.is_repeated for event in outboxes.taken(outbox, count)]

    path = tmp_path / "events.sqlite"
    with outboxes.outbox_at(path) as outbox:
        outboxes.put(outbox, 700)  # more than are read ahead
        assert marks(outbox, 3) == [False] * 3
        outbox.end_connection(is_orderly=False)
        assert marks(outbox, 5) == [True] * 3 + [False] * 2
        for event in outboxes.taken(outbox, 1):
            outbox.give_back(event, 0.0)  # the broker did not take it
        assert marks(outbox, 1) == [False]
    with outboxes.outbox_at(path) as outbox:
        outboxes.put(outbox, 1)
        assert marks(outbox, 701) == [True] * 700 + [False]


class FailingDisk:
    """One that does not take a share of the transactions, or says that it did not though it did."""

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


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.long)])
def test_a_disk_that_fails_loses_nothing_uncounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    rng = random.Random(15)
    disk = FailingDisk(monkeypatch, rng)
    with outboxes.folder_in_memory(tmp_path) as folder:
        for number in range(count):
            _live_and_check(folder / f"{number}" / "events.sqlite", disk, rng)


def _live_and_check(path: Path, disk: FailingDisk, rng: random.Random) -> None:
    size, max_mb = rng.choice([60, 3000]), rng.choice([1, 64])
    numbers, through, lost = set[int](), set[int](), 0
    for start in range(4):
        with outboxes.outbox_at(path, max_mb=max_mb) as outbox:
            if start == 3:
                through |= {event.seq for event in outboxes.deliver_all(outbox)}
                break
            disk.share = rng.choice([0.05, 0.2])
            for _ in range(rng.randrange(2, 8)):
                numbers.update(filter(None, outboxes.put(outbox, rng.randrange(80), size=size)))
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
            outbox.reject(event, "Packet too large")
        else:
            outbox.deliver(event)
    return sent


def test_what_only_memory_has_is_not_overtaken_by_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.sqlite"
    with outboxes.outbox_at(path) as outbox:
        earlier = outboxes.put(outbox, 5)
    settings, clock = OutboxSettings(), AgeClock("boot")
    queue = OutboxQueue(SequenceNumbers(lambda: 0.0), clock.seconds, settings.max_memory_bytes)
    writer = Writer(queue, path, clock, settings, OutboxWarnings(), Backoff(0.001, 0.001))
    with monkeypatch.context() as patch:
        patch.setattr(EventStore, "_prepare", _raise)
        writer.open()
        numbers = [queue.put(outboxes.TOPIC + "gate", "gate", outboxes.payload) for _ in range(3)]
        writer.turn()
        found = [*iter(queue.take, None)]  # from memory
    outboxes.until(lambda: writer.retry_s in (0.0, math.inf))
    numbers += [queue.put(outboxes.TOPIC + "gate", "gate", outboxes.payload) for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(EventStore, "commit", _raise)
        writer.turn()  # it is opened, and takes nothing
        found += iter(queue.take, None)
    outboxes.until(lambda: writer.retry_s in (0.0, math.inf))
    writer.turn()
    found += iter(queue.take, None)
    writer.close()
    assert [event.seq for event in found] == numbers + earlier


def _raise(*_: object) -> None:
    raise sqlite3.OperationalError("disk is full")
