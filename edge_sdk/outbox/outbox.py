"""Events that survive: kept on disk from the moment they are acknowledged until the broker has them.

EventOutbox: events from `put` until the broker has them, over restarts, power cuts and weeks without a broker.

Owns the thread between memory and disk, and when it works. An event is acknowledged once the commit that holds it has
returned: from then on it is at the broker or on disk.

Entrance: events from `put` to the shelf, where they get their numbers.

Owns what has no number yet: what is held for its rate, and what comes before the file says which numbers were given.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from edge_sdk.core.errors import descriptor_shortage
from edge_sdk.core.threads import Backoff, RateLimiter
from edge_sdk.outbox.event import Encode, EventStats, QueuedEvent
from edge_sdk.outbox.queue import OutboxQueue, SequenceNumbers
from edge_sdk.outbox.settings import OutboxSettings
from edge_sdk.outbox.store import AgeClock, is_there, since_boot_s
from edge_sdk.outbox.warnings import LossWarnings, OutboxWarnings
from edge_sdk.outbox.writer import WriterSchedule

if TYPE_CHECKING:
    from edge_sdk.outbox.recovery import Disk
    from edge_sdk.outbox.writer import Writer


_MOST_OUTCOMES = 100  # that nobody was told of yet
_MOST_EARLY = 10_000  # events that wait for the file; of more the oldest are lost, as of those that wait for a commit

_Put: TypeAlias = tuple[str, str, Encode]


class Admission:
    """Of one outbox; its methods may be called from any thread.

    Args:
        shelf: takes events in their order.
        on_failure: called by `release` with what the encoding of an event raised, and with None where it raised
            nothing; only of those that had to wait for their number. Where it fails at once, who puts it is told.
        is_open: whether there is no file whose numbers are to be known first.
    """

    def __init__(self, shelf: OutboxQueue, on_failure: Callable[[Exception | None], None], *, is_open: bool) -> None:
        self._shelf, self._on_failure = shelf, on_failure
        self._early: deque[_Put] = deque()
        self._entering: deque[_Put] = deque()
        self._outcomes: deque[Exception | None] = deque(maxlen=_MOST_OUTCOMES)
        self._lock = threading.Lock()
        self._is_open = threading.Event()
        if is_open:
            self._is_open.set()
        self._pace: RateLimiter[_Put, int | None] = RateLimiter(None, self._enter)

    def limit(self, max_per_s: float | None) -> None:
        """Let so many of each camera in a second; before the first of them comes."""
        self._pace = RateLimiter(max_per_s, self._enter, go_late=lambda event: self._try(self._enter, event))

    def put(self, topic: str, camera: str, encode: Encode) -> int | None:
        """Let one in; its number, or None while it has none."""
        return self._pace.put(camera, (topic, camera, encode))

    def release(self, *, all_of_them: bool = False) -> None:
        """Let in what was held for its rate, and whose time has come, or all of it; and say what became of them."""
        self._pace.release(all_of_them=all_of_them)
        with contextlib.suppress(IndexError):  # another thread does so too
            while self._outcomes:  # without a lock: who is told may ask how the outbox does
                self._on_failure(self._outcomes.popleft())

    def open(self) -> None:
        """Which numbers were given is known, or never will be."""
        with self._lock:
            self._entering, self._early = self._early, deque()
        self._number()  # without the lock, which who puts would wait for
        with self._lock:
            self._entering, self._early = self._early, deque()  # the few that came meanwhile
            self._number()
            self._is_open.set()

    def wait_open(self, timeout_s: float) -> bool:
        """Wait until all that was put, and is not held for its rate, has its number; False where that takes longer."""
        return self._is_open.wait(timeout_s)

    @property
    def early(self) -> int:
        """Events that wait for the file."""
        return len(self._early) + len(self._entering)

    @property
    def limited(self) -> int:
        """How many were left out for their rate."""
        return self._pace.limited()

    def wait_s(self) -> float:
        """Seconds until something that is held for its rate is due; infinity where nothing is."""
        return self._pace.wait_s()

    def _number(self) -> None:
        while self._entering:
            self._try(lambda event: self._shelf.put(*event), self._entering[0])
            self._entering.popleft()  # not before: it is counted at every moment

    def _try(self, enter: Callable[[_Put], object], event: _Put) -> None:
        try:
            enter(event)
        except Exception as cause:  # noqa: BLE001 - the fault of who put it, who is not here any more
            self._outcomes.append(cause)
            self._shelf.leave_out(is_lost=False)
        else:
            self._outcomes.append(None)

    def _enter(self, event: _Put) -> int | None:
        if self._is_open.is_set():
            return self._shelf.put(*event)
        with self._lock:
            if self._is_open.is_set():
                return self._shelf.put(*event)
            self._early.append(event)
            if len(self._early) > _MOST_EARLY:
                self._early.popleft()
                self._shelf.leave_out(is_lost=True)
        return None


_FAULT_S = 1.0
_DOUBT_S = 3.0  # from an answer to a later word: that is read within a second, so the broker was there for two


class EventOutbox:
    """Of one device. `put` is called by the cameras' loops, what takes and settles by the thread that publishes.

    Args:
        settings: bounds.
        path: of the file, which no other process may use; None: events wait in memory only.
        boot_id: of the running boot.
        on_trouble: called with a name and a line for people, empty once it is over; from any thread.
        wall_s: seconds since 1970, however wrong.
        now_s: seconds since the machine was started.
        retry: how long to wait before a disk that takes nothing is tried again.
        after: an outbox that was closed; where it is still busy with this file, its end is waited for.
    """

    def __init__(
        self,
        settings: OutboxSettings,
        path: Path | None,
        boot_id: str,
        *,
        on_trouble: Callable[[str, str], None] | None = None,
        wall_s: Callable[[], float] = time.time,
        now_s: Callable[[], float] = since_boot_s,
        retry: Backoff | None = None,
        after: EventOutbox | None = None,
    ) -> None:
        self._settings = settings
        self._troubles = OutboxWarnings(on_trouble)
        self._path, self._retry = path, retry
        self._clock = AgeClock(boot_id, now_s)
        self._shelf = OutboxQueue(SequenceNumbers(wall_s), self._clock.seconds, settings.max_memory_bytes)
        self._before = after if after is not None and after.is_busy_with(path) else None
        # At once where there is one: it knows the numbers, and has what an earlier process could not send.
        has_file = path is not None and (self._before is not None or is_there(path))
        self._entrance = Admission(self._shelf, self._troubles.say_unencoded, is_open=not has_file)
        self._complaints = LossWarnings(self._troubles.say)
        self._was_durable: bool | None = None
        self._disk: Disk | None = None
        self._thread: threading.Thread | None = None
        self._on_ready: Callable[[], None] = lambda: None
        self._alarm, self._closing = WriterSchedule(), threading.Event()
        self._is_hungry = False
        self._start_lock = threading.Lock()
        if has_file:
            self._start()

    @property
    def waiting(self) -> int:
        """Events that are not at the broker yet, and not lost."""
        return self._entrance.early + self._shelf.waiting

    def limit(self, max_per_s: float | None) -> None:
        """Take so many of each camera a second, the newest of what is more; to be called before the first `put`."""
        self._entrance.limit(max_per_s)

    def put(self, topic: str, camera: str, encode: Encode) -> int | None:
        """Take one event; never waits for a disk or a network.

        Args:
            topic: where it goes.
            camera: whose it is.
            encode: makes its bytes from its number.

        Returns:
            Its number among the camera's. Numbers grow over restarts, and no two events that anybody saw bear the same.
            None where it has none yet: it is held, as its rate asks for, or the file is not read yet.
        """
        seq = self._entrance.put(topic, camera, encode)
        if self._alarm.is_idle:
            self._alarm.ring()
            if self._thread is None:
                self._start()
        return seq

    def committed_seq(self, camera: str) -> int | None:
        """The newest number of this camera that a commit of this process has written down; None without one."""
        return self._shelf.committed_seq(camera)

    def wait_committed(self, timeout_s: float) -> bool:
        """Wait until all that was put before, and no rate holds, is on disk or at the broker.

        Returns:
            False where that takes longer, or where some of what was put since this thread asked last was lost before it
            was there (see `stats`), or could not be encoded after it had waited for the file or its rate.
        """
        until = time.monotonic() + timeout_s
        return self._entrance.wait_open(timeout_s) and self._shelf.wait_committed(max(0.0, until - time.monotonic()))

    def attach(self, on_ready: Callable[[], None]) -> None:
        """Have something called, from the outbox's thread, when there is something to take."""
        self._on_ready = on_ready
        if self._shelf.is_ready:
            on_ready()

    def listen(self, on_trouble: Callable[[str, str], None]) -> None:
        """Have something told what is wrong, what is so already first; see `on_trouble`."""
        self._troubles.listen(on_trouble)

    @property
    def is_ready(self) -> bool:
        """Whether there is something to take."""
        return self._shelf.is_ready

    @property
    def is_held(self) -> bool:
        """Whether nothing is taken for a while, because the broker asked for that."""
        return self._shelf.is_held

    @property
    def is_durable(self) -> bool:
        """Whether what is put goes to disk at present; after the end whether it did so to the last."""
        return (self._disk is not None and self._disk.takes) if self._was_durable is None else self._was_durable

    def take(self) -> QueuedEvent | None:
        """The next event; the caller settles it by one of the next three."""
        event = self._shelf.take()
        if self._shelf.is_low and not self._is_hungry:
            self._is_hungry = True
            self._alarm.ring()
        return event

    def deliver(self, event: QueuedEvent) -> None:
        """The broker has it."""
        self._shelf.deliver(event)
        self._complaints.delivered(event.topic)
        self._alarm.soon()

    def refuse(self, event: QueuedEvent, reason: str) -> None:
        """The broker never takes it: it is put aside."""
        self._shelf.refuse(event, reason)
        self._complaints.refused(event.topic, reason)
        self._alarm.soon()

    def give_back(self, event: QueuedEvent, hold_s: float) -> None:
        """It did not arrive, and is the next again; nothing is taken for `hold_s` seconds."""
        self._shelf.give_back(event, hold_s)

    def end_connection(self, *, is_orderly: bool) -> None:
        """The connection is over: what was taken and not settled is the next again.

        Args:
            is_orderly: the broker took the goodbye. Otherwise what it answered, and said nothing after for two seconds,
                comes again: a broker that crashed had acknowledged events which it had not written down.
        """
        if is_orderly:
            self._shelf.settle(math.inf)
        self._shelf.recall()
        self._alarm.soon()

    def hear(self) -> None:
        """The broker says something: what it had answered some time before on this connection is sure."""
        if self._shelf.settle(time.monotonic() - _DOUBT_S):
            self._alarm.soon()

    def stats(self) -> EventStats:
        """What happened so far."""
        early, counts = self._entrance.early, self._shelf.counts()
        return EventStats(
            put=counts.put + early,
            restored=counts.restored,
            waiting=counts.waiting + early,
            delivered=counts.delivered,
            lost=counts.lost,
            is_durable=self.is_durable,
            set_aside=0 if self._disk is None else self._disk.set_aside,
            limited=self._entrance.limited,
        )

    def hasten(self) -> None:
        """Let go what is held for its rate: the end has come."""
        self._entrance.release(all_of_them=True)
        self._alarm.ring()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write down what there is and end; may be called twice.

        Args:
            timeout_s: seconds; a thread that is stuck in the disk is left behind, and that is said.
        """
        self._was_durable = self.is_durable
        self._closing.set()
        self._alarm.ring()
        self.join(timeout_s)
        if self.is_busy_with(self._path):
            line = f"{self._path}: this disk did not take the last events within {timeout_s:.1f} s; look after it"
            self._troubles.say("outbox_disk", line)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of its thread, after `close`."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def is_busy_with(self, path: Path | None) -> bool:
        """Whether its thread may have this file open."""
        return path == self._path and self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None and not self._closing.is_set():
                thread = threading.Thread(target=self._run, name="edge-outbox", daemon=True)
                try:
                    thread.start()
                except RuntimeError as cause:  # tried again with the next event; `_try_writer` takes it back
                    self._troubles.say_memory_only(f"{cause}; allow this user more threads")
                    return
                self._thread = thread

    def _try_writer(self) -> Writer | None:
        try:
            from edge_sdk.outbox.recovery import Disk  # with SQLite: only where there are events
            from edge_sdk.outbox.writer import Writer

            self._disk = Disk(self._path, self._settings, self._troubles.say, self._retry)
            writer = Writer(self._shelf, self._disk, self._clock, self._settings, self._complaints)
        except Exception as cause:  # noqa: BLE001 - no descriptor is left to load SQLite with; that may pass
            self._troubles.say_memory_only(descriptor_shortage() or f"{type(cause).__name__}: {cause}")
            return None
        self._troubles.say("outbox_disk", "")
        return writer

    def _run(self) -> None:
        if self._before is not None:
            self._before.join()
            self._before = None
        while (writer := self._try_writer()) is None:
            if self._closing.wait(_FAULT_S):
                self._entrance.open()
                self._shelf.count_lost("memory", self._shelf.waiting)
                self._complaints.lost(self._shelf.counts().lost, is_last=True)
                return
        self._try(writer.open)
        self._entrance.open()
        while not self._closing.is_set():
            begun_s = time.monotonic()  # what came in this turn has waited for its commit since then, at the longest
            self._turn(writer)
            if not self._shelf.has_new:
                self._alarm.wait(self._has_work, self._due_s)
                begun_s = time.monotonic()
            if self._shelf.has_new:  # what comes meanwhile goes into the same commit
                self._closing.wait(max(0.0, begun_s + self._settings.commit_s - time.monotonic()))
        self._entrance.release(all_of_them=True)
        writer.close()

    def _has_work(self) -> bool:
        return self._shelf.has_new or self._is_hungry or self._closing.is_set()

    def _due_s(self) -> float:
        return min(self._entrance.wait_s(), math.inf if self._disk is None else self._disk.due_s)

    def _turn(self, writer: Writer) -> None:
        self._is_hungry = False
        self._alarm.clear()
        self._try(self._entrance.release)
        self._try(writer.turn)
        self._complaints.lost(self._shelf.counts().lost)
        if self._shelf.is_ready:
            self._on_ready()

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as cause:  # noqa: BLE001 - a fault of ours must not end what keeps events for months
            self._troubles.say_fault(cause)
            self._closing.wait(_FAULT_S)
