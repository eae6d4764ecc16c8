"""Tests of the event outbox: make one over a file, put numbered events, take what would go to a broker."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.core.threads import Backoff
from edge_sdk.outbox.event import OutboxSettings, QueuedEvent
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.outbox.store import EventStore
from edge_sdk.publisher import Publisher
from tests.support.connections import WAIT_S, until

TOPIC = "edge/v1/default/pi/event/"


@contextmanager
def outbox_at(
    path: Path | None, *, boot_id: str = "boot", said: list[tuple[str, str]] | None = None, **changes: Any
) -> Iterator[EventOutbox]:
    """One that looks after a disk that takes nothing every few milliseconds; it ends in an orderly way."""
    clocks = {name: changes.pop(name) for name in ("wall_s", "now_s") if name in changes}
    outbox = EventOutbox(
        OutboxSettings(**{"commit_s": 0.002, **changes}), path, boot_id, retry=Backoff(0.01, 0.05), **clocks
    )
    if said is not None:
        outbox.listen(lambda *warning: said.append(warning))
    try:
        assert outbox.wait_committed(WAIT_S)  # what its file knows is known
        yield outbox
    finally:
        outbox.end_connection(is_orderly=True)
        outbox.close(WAIT_S)


def put(outbox: EventOutbox, count: int, camera: str = "door", size: int = 20) -> list[int]:
    return [outbox.put(TOPIC + camera, camera, lambda seq: payload(seq, size)) for _ in range(count)]


def committed(outbox: EventOutbox, count: int, camera: str = "door", size: int = 20) -> list[int]:
    numbers = put(outbox, count, camera, size)
    assert outbox.wait_committed(WAIT_S)
    return numbers


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def say_acknowledged(
    outbox: EventOutbox | Publisher, numbers: Sequence[int | None], say: Callable[[int], object]
) -> None:
    """Say again and again, from a thread of its own, that the last of these events and all before it are on disk."""

    def run() -> None:
        said = None
        while True:
            number = numbers[-1]
            if number == said or number is None:
                time.sleep(0.002)
            elif outbox.wait_committed(WAIT_S):
                said = number
                say(number)

    threading.Thread(target=run, daemon=True).start()


class SlowDisk:
    """A disk that takes its time for each commit of events, from when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pause_s, self.may_go = 0.0, threading.Event()
        self.may_go.set()
        commit = EventStore.commit

        def delayed(*arguments: Any) -> None:
            time.sleep(self.pause_s)
            self.may_go.wait(WAIT_S)
            commit(*arguments)

        monkeypatch.setattr(EventStore, "commit", delayed)


def payload(seq: int, size: int = 20) -> bytes:
    return (b'{"seq":%d}' % seq).ljust(size)


def taken(outbox: EventOutbox, count: int) -> list[QueuedEvent]:
    """The next so many events, which are on their way from now on."""
    events: list[QueuedEvent] = []

    def take() -> bool:
        while len(events) < count and (event := outbox.take()) is not None:
            events.append(event)
        return len(events) == count

    until(take)
    return events


def takes_all(outbox: EventOutbox, numbers: list[int]) -> bool:
    numbers += [event.seq for event in iter(outbox.take, None)]
    return True


def delivered(outbox: EventOutbox, count: int) -> list[int]:
    numbers = []
    while len(numbers) < count:
        [event] = taken(outbox, 1)
        outbox.deliver(event)
        numbers.append(event.seq)
    return numbers


def deliver_all(outbox: EventOutbox) -> list[QueuedEvent]:
    events: list[QueuedEvent] = []

    def is_done() -> bool:
        while (event := outbox.take()) is not None:
            outbox.deliver(event)
            events.append(event)
        return outbox.waiting == 0

    until(is_done)
    return events


@contextmanager
def folder_in_memory(otherwise: Path) -> Iterator[Path]:
    """A folder in memory where there is one, for what is opened hundreds of times: its syncs prove nothing there."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else otherwise) as folder:
        yield Path(folder)
