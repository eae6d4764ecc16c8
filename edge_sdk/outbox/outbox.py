"""EventOutbox: keeps events from `put` until the broker has them, over restarts, power cuts and weeks without a broker.

An event is acknowledged to its producer once the commit that holds it has returned. The outbox owns one thread, which
stands between memory and disk. It starts with the first event, or at once where there is a file already: the file knows
which numbers were given, and has events that were not sent. Events that come before it is read, or faster than their
rate allows, wait for their number.

`queue` holds the events in memory, `writer` is what the thread does, `store` and `recovery` are the file.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edge_sdk.core.errors import descriptor_shortage
from edge_sdk.core.threads import Backoff, RateLimiter
from edge_sdk.outbox.event import Encode, EventStats, QueuedEvent
from edge_sdk.outbox.queue import OutboxQueue, SequenceNumbers
from edge_sdk.outbox.settings import OutboxSettings
from edge_sdk.outbox.store import AgeClock, is_there, since_boot_s
from edge_sdk.outbox.warnings import OutboxWarnings

if TYPE_CHECKING:
    from edge_sdk.outbox.writer import Writer

_FAULT_S = 1.0
_DOUBT_S = 3.0  # from an answer to a later word: that is read within a second, so the broker was there for two
_IDLE_S = 60.0
_SOON_S = 0.5  # the file learns so soon what the broker has; a kill before that sends it twice


class EventOutbox:
    """Durable event queue of one device.

    Camera threads call `put`; the publisher's thread calls `take` and then `deliver`, `reject` or `give_back`.

    Args:
        settings: bounds.
        path: the file, which no other process may use; None: events wait in memory only.
        boot_id: id of the running boot.
        wall_s: seconds since 1970, however wrong.
        now_s: seconds since the machine was started.
        retry: how long to wait before a disk that takes nothing is tried again.
        after: an outbox that was closed and may still be busy with this file: its end is waited for.
    """

    def __init__(
        self,
        settings: OutboxSettings,
        path: Path | None,
        boot_id: str,
        *,
        wall_s: Callable[[], float] = time.time,
        now_s: Callable[[], float] = since_boot_s,
        retry: Backoff | None = None,
        after: EventOutbox | None = None,
    ) -> None:
        self._settings, self._path, self._retry = settings, path, retry
        self._warnings = OutboxWarnings()
        self._clock = AgeClock(boot_id, now_s)
        self._before = after if after is not None and after._is_busy_with(path) else None
        has_file = path is not None and (self._before is not None or is_there(path))
        self._queue = OutboxQueue(
            SequenceNumbers(wall_s), self._clock.seconds, settings.max_memory_bytes, is_open=not has_file
        )
        self.limit(None)
        self._writer: Writer | None = None
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._on_ready: Callable[[], None] = lambda: None
        self._bell, self._closing = threading.Event(), threading.Event()
        self._soon_at = math.inf
        self._is_idle, self._is_hungry = True, False
        if has_file:
            self._start()

    def limit(self, max_per_s: float | None) -> None:
        """Take so many of each camera a second, the newest of what is more; to be called before the first `put`."""
        queue = self._queue
        self._limiter: RateLimiter[tuple[str, str, Encode], int | None] = RateLimiter(
            max_per_s, lambda event: queue.put(*event), go_late=lambda event: queue.put_late(*event)
        )

    def put(self, topic: str, camera: str, encode: Encode) -> int | None:
        """Take one event of a camera, whose bytes `encode` makes from its number; never waits for a disk or a network.

        Returns:
            Its number among the camera's. Numbers grow over restarts, and no two events that anybody saw bear the same.
            None where it has none yet: it is held, as its rate asks for, or the file is not read yet.
        """
        seq = self._limiter.put(camera, (topic, camera, encode))
        if self._is_idle:
            self._bell.set()
            if self._thread is None:
                self._start()
        return seq

    def wait_committed(self, timeout_s: float) -> bool:
        """Wait until all that was put before, and no rate holds, is on disk or at the broker.

        Returns:
            False where that takes longer, or where some of what was put since this thread asked last was lost before it
            was there (see `stats`), or could not be encoded after it had waited for the file or its rate.
        """
        return self._queue.wait_committed(timeout_s)

    def attach(self, on_ready: Callable[[], None]) -> None:
        """Call a function, from the outbox's thread, when there is something to take."""
        self._on_ready = on_ready
        if self._queue.is_ready:
            on_ready()

    def listen(self, listener: Callable[[str, str], None]) -> None:
        """Tell a function, from any thread, the name of each warning and a line for people, empty once it is over.

        What is wrong already is told first.
        """
        self._warnings.listen(listener)

    @property
    def is_ready(self) -> bool:
        """Whether `take` has an event to give."""
        return self._queue.is_ready

    @property
    def is_held(self) -> bool:
        """Whether nothing is taken for a while, because the broker asked for that."""
        return self._queue.is_held

    @property
    def is_durable(self) -> bool:
        """Whether what is put goes to disk at present; after `close`, whether all that waited is there."""
        return self._writer is not None and self._writer.takes

    @property
    def waiting(self) -> int:
        """Events that are not at the broker yet, and not lost."""
        return self._queue.waiting

    def stats(self) -> EventStats:
        """Return what happened so far."""
        return msgspec.structs.replace(
            self._queue.stats(),
            is_durable=self.is_durable,
            set_aside=0 if self._writer is None else self._writer.set_aside,
            limited=self._limiter.limited(),
        )

    def take(self) -> QueuedEvent | None:
        """Take the next event, which the caller settles by `deliver`, `reject` or `give_back`; None without one."""
        event = self._queue.take()
        if self._queue.is_low and not self._is_hungry:
            self._is_hungry = True
            self._bell.set()
        return event

    def deliver(self, event: QueuedEvent) -> None:
        """Record that the broker has an event."""
        self._queue.deliver(event)
        self._warnings.delivered(event.topic)
        self._wake_soon()

    def reject(self, event: QueuedEvent, reason: str) -> None:
        """Move an event to the quarantine, because the broker never takes it."""
        self._queue.reject(event, reason)
        self._warnings.rejected(event.topic, reason)
        self._wake_soon()

    def give_back(self, event: QueuedEvent, hold_s: float) -> None:
        """Make an event that did not arrive the next one again; nothing is taken for `hold_s` seconds."""
        self._queue.give_back(event, hold_s)

    def confirm(self) -> None:
        """Believe what the broker answered some time ago: it has just said something else on the same connection."""
        if self._queue.settle(time.monotonic() - _DOUBT_S):
            self._wake_soon()

    def end_connection(self, *, is_orderly: bool) -> None:
        """Make what was taken and not settled the next again: the connection is over.

        Unless the end was orderly (the broker took the goodbye), what it answered and said nothing after for two
        seconds comes again: a broker that crashed had acknowledged events which it had not written down.
        """
        if is_orderly:
            self._queue.settle(math.inf)
        self._queue.recall()
        self._wake_soon()

    def release_held(self) -> None:
        """Let in what is held for its rate: the end has come."""
        self._limiter.release(all_of_them=True)
        self._bell.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write down what there is and end; a thread that is stuck in the disk is left behind, and that is said."""
        self._closing.set()
        self._bell.set()
        self._join(timeout_s)
        if self._is_busy_with(self._path):
            line = f"{self._path}: this disk did not take the last events within {timeout_s:.1f} s; look after it"
            self._warnings.say("outbox_disk", line)

    def _join(self, timeout_s: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _is_busy_with(self, path: Path | None) -> bool:
        return path == self._path and self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None and not self._closing.is_set():
                thread = threading.Thread(target=self._run, name="edge-outbox", daemon=True)
                try:
                    thread.start()
                except RuntimeError as cause:  # tried again with the next event; `_load_writer` takes it back
                    self._warnings.memory_only(f"{cause}; allow this user more threads")
                    return
                self._thread = thread

    # What the outbox's own thread does.

    def _run(self) -> None:
        if self._before is not None:
            self._before._join()
            self._before = None
        while (writer := self._load_writer()) is None:
            if self._closing.wait(_FAULT_S):
                self._queue.number_early(self._warnings.encoded)
                self._queue.count_lost("memory", self._queue.waiting)
                self._warnings.lost(self._queue.stats().lost, is_last=True)
                return
        self._try(writer.open)
        self._queue.number_early(self._warnings.encoded)
        while not self._closing.is_set():
            begun_s = time.monotonic()  # what came in this turn has waited for its commit since then, at the longest
            self._turn(writer)
            if not self._queue.has_new:
                self._wait_for_work()
                begun_s = time.monotonic()
            if self._queue.has_new:  # what comes meanwhile goes into the same commit
                self._closing.wait(max(0.0, begun_s + self._settings.commit_s - time.monotonic()))
        self._limiter.release(all_of_them=True)
        self._queue.number_early(self._warnings.encoded)
        writer.close()

    def _load_writer(self) -> Writer | None:
        try:
            from edge_sdk.outbox.writer import Writer  # with SQLite: only where there are events

            self._writer = Writer(self._queue, self._path, self._clock, self._settings, self._warnings, self._retry)
        except Exception as cause:  # noqa: BLE001 - no descriptor is left to load SQLite with; that may pass
            self._warnings.memory_only(descriptor_shortage() or f"{type(cause).__name__}: {cause}")
            return None
        self._warnings.say("outbox_disk", "")
        return self._writer

    def _turn(self, writer: Writer) -> None:
        self._is_hungry, self._soon_at = False, math.inf
        self._try(self._limiter.release)
        self._try(lambda: self._queue.number_early(self._warnings.encoded))
        self._try(writer.turn)
        if self._queue.is_ready:
            self._on_ready()

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as cause:  # noqa: BLE001 - a fault of ours must not end what keeps events for months
            self._warnings.fault(cause)
            self._closing.wait(_FAULT_S)

    def _wake_soon(self) -> None:
        """Let the thread look within half a second."""
        if self._soon_at == math.inf:
            self._soon_at = time.monotonic() + _SOON_S
            self._bell.set()

    def _wait_for_work(self) -> None:
        self._is_idle = True  # before the look: what is put in between rings
        while not (self._queue.has_new or self._is_hungry or self._closing.is_set()):
            retry_s = math.inf if self._writer is None else self._writer.retry_s
            wait_s = min(_IDLE_S, self._limiter.wait_s(), retry_s, self._soon_at - time.monotonic())
            if wait_s <= 0:
                break
            is_rung = self._bell.wait(wait_s)
            self._bell.clear()
            if not is_rung:
                break
        self._is_idle = False
