"""EventOutbox: keeps events from `put` until the broker has them, over restarts, power cuts and weeks without a broker.

An event is durable once the commit that holds it has returned. The outbox owns one thread, which moves events between
memory and disk. It opens the file with the first event, or at once where a file exists, because the file knows which
numbers were given and has unsent events. Events that come before the file is read, or faster than their rate allows,
wait for their number.

`queue` holds the events in memory, `writer` does the thread's work, `store` and `recovery` handle the file.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from edge_sdk.core.threads import Backoff, RateLimiter
from edge_sdk.outbox.event import Encode, EventStats, OutboxSettings, OutboxWarnings, QueuedEvent
from edge_sdk.outbox.queue import OutboxQueue, SequenceNumbers
from edge_sdk.outbox.store import AgeClock, is_there, since_boot_s
from edge_sdk.outbox.writer import Writer

_FAULT_S = 1.0
_DOUBT_S = 3.0  # least time from an acknowledgement to the later packet that makes it final; both may be read 1 s late
_IDLE_S = 60.0
_BEFORE_S = 5.0
_SOON_S = 0.5  # longest delay until the file records deliveries; after a kill before that, events are sent twice


class EventOutbox:
    """Durable event queue of one device.

    Camera threads call `put`; the publisher's thread calls `take` and then `deliver`, `reject` or `give_back`.

    Args:
        settings: the bounds.
        path: the file, which no other process may use; None: events wait in memory only.
        boot_id: id of the running boot.
        wall_s, now_s: return seconds since 1970, which may be wrong, and since the machine was started.
        retry: delays before a failing disk is tried again.
        before: an outbox that was closed and may still be busy with the same file; its end is waited for, five seconds.
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
        before: EventOutbox | None = None,
    ) -> None:
        self._settings, self._path = settings, path
        self._before = before
        self._warnings = OutboxWarnings()
        clock = AgeClock(boot_id, now_s)
        self._has_file = path is not None and is_there(path)
        self._queue = OutboxQueue(
            SequenceNumbers(wall_s), clock.seconds, settings.max_memory_bytes, is_open=not self._has_file
        )
        self._writer = Writer(self._queue, path, clock, settings, self._warnings, retry)
        self.limit(None)
        self._on_ready: Callable[[], None] = lambda: None
        self._bell, self._closing = threading.Event(), threading.Event()
        self._soon_at = math.inf
        self._is_idle, self._is_hungry = True, False
        self._thread = threading.Thread(target=self._run, name="edge-outbox", daemon=True)
        self._thread.start()

    def limit(self, max_per_s: float | None) -> None:
        """Limit the events per second of each camera, keeping the newest; to be called before the first `put`."""
        queue = self._queue
        self._limiter: RateLimiter[tuple[str, str, Encode], int | None] = RateLimiter(
            max_per_s, lambda event: queue.put(*event), go_late=lambda event: queue.put_late(*event)
        )

    def put(self, topic: str, camera: str, encode: Encode) -> int | None:
        """Queue one event of a camera, which `encode` encodes with its number; never wait for a disk or a network.

        Return the event's number, or None where it has none yet, because its rate holds it back or the file is not read
        yet. Numbers of a camera grow over restarts, and no two published events share one.
        """
        seq = self._limiter.put(camera, (topic, camera, encode))
        if self._is_idle:
            self._bell.set()
        return seq

    def wait_committed(self, timeout_s: float) -> bool:
        """Wait until all events that were put before, and that no rate holds back, are on disk or at the broker.

        Return False after `timeout_s` seconds, or where an event put since this thread's last call was lost before it
        was safe (see `stats`), or could not be encoded after it had waited for the file or its rate.
        """
        return self._queue.wait_committed(timeout_s)

    def attach(self, on_ready: Callable[[], None]) -> None:
        """Call `on_ready` from the outbox's thread whenever there is an event to take."""
        self._on_ready = on_ready
        if self._queue.is_ready:
            on_ready()

    def listen(self, listener: Callable[[str, str], None]) -> None:
        """Call a function with the name and line of each present and later warning; an empty line ends a warning."""
        self._warnings.listen(listener)

    @property
    def is_ready(self) -> bool:
        """Whether `take` returns an event."""
        return self._queue.is_ready

    @property
    def is_held(self) -> bool:
        """Whether `take` returns nothing for a while, because of `give_back`."""
        return self._queue.is_held

    @property
    def is_durable(self) -> bool:
        """Whether new events go to disk at present; after `close`, whether all waiting events are on disk."""
        return self._writer.takes

    @property
    def waiting(self) -> int:
        """The number of events that are neither delivered nor lost."""
        return self._queue.waiting

    def stats(self) -> EventStats:
        """Return the counts of all events so far."""
        return msgspec.structs.replace(
            self._queue.stats(),
            is_durable=self.is_durable,
            set_aside=self._writer.set_aside,
            limited=self._limiter.limited(),
        )

    def take(self) -> QueuedEvent | None:
        """Take the next event, or None; the caller must then call `deliver`, `reject` or `give_back`."""
        event = self._queue.take()
        if self._queue.is_low and not self._is_hungry:
            self._is_hungry = True
            self._bell.set()
        return event

    def deliver(self, event: QueuedEvent) -> None:
        """Record that the broker acknowledged an event."""
        self._queue.deliver(event)
        self._warnings.delivered(event.topic)
        self._wake_soon()

    def reject(self, event: QueuedEvent, reason: str) -> None:
        """Move an event to the quarantine, because the broker refuses it for good."""
        self._queue.reject(event, reason)
        self._warnings.rejected(event.topic, reason)
        self._wake_soon()

    def give_back(self, event: QueuedEvent, hold_s: float) -> None:
        """Make an event that did not arrive the next one again; `take` returns nothing for `hold_s` seconds."""
        self._queue.give_back(event, hold_s)

    def confirm(self) -> None:
        """Make earlier acknowledgements final, because the broker has just sent something on the same connection."""
        if self._queue.settle(time.monotonic() - _DOUBT_S):
            self._wake_soon()

    def end_connection(self, *, is_orderly: bool) -> None:
        """Make events in flight ready again, because the connection is over.

        Unless the end was orderly (the broker accepted the offline message), events acknowledged in the last seconds
        are also sent again, because a broker that crashes may have acknowledged events that it had not stored.
        """
        if is_orderly:
            self._queue.settle(math.inf)
        self._queue.recall()
        self._wake_soon()

    def release_held(self) -> None:
        """Queue the events that the rate limit holds back, before the outbox closes."""
        self._limiter.release(all_of_them=True)
        self._bell.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write the waiting events and end; abandon a thread that is stuck in the disk, with a warning."""
        self._closing.set()
        self._bell.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            line = f"{self._path}: this disk did not take the last events within {timeout_s:.1f} s; look after it"
            self._warnings.say("outbox_disk", line)

    # Methods of the outbox's own thread.

    def _run(self) -> None:
        while not (self._has_file or self._queue.has_new):
            if self._closing.is_set():
                return
            self._bell.wait()
            self._bell.clear()
        if self._before is not None:
            self._before._thread.join(_BEFORE_S)
            self._before = None
        self._is_idle = False
        number_early = partial(self._queue.number_early, self._warnings.encoded)
        self._try(self._writer.open)
        number_early()
        while not self._closing.is_set():
            begun_s = time.monotonic()  # the earliest time at which an event of this turn came
            self._is_hungry, self._soon_at = False, math.inf
            for step in (self._limiter.release, number_early, self._writer.turn):
                self._try(step)
            if self._queue.is_ready:
                self._on_ready()
            if not self._queue.has_new:
                self._wait_for_work()
                begun_s = time.monotonic()
            if self._queue.has_new:  # events that come meanwhile go into the same commit
                self._closing.wait(max(0.0, begun_s + self._settings.commit_s - time.monotonic()))
        self._limiter.release(all_of_them=True)
        number_early()
        self._writer.close()

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as cause:  # noqa: BLE001 - a bug here must not end the thread that keeps events
            line = f"{type(cause).__name__}: {cause}; report this, events wait in memory"
            self._warnings.say("outbox_fault", line)
            self._closing.wait(_FAULT_S)

    def _wake_soon(self) -> None:
        """Wake the thread within half a second."""
        if self._soon_at == math.inf:
            self._soon_at = time.monotonic() + _SOON_S
            self._bell.set()

    def _wait_for_work(self) -> None:
        self._is_idle = True  # set before the check, so that an event put in between wakes the thread
        while not (self._queue.has_new or self._is_hungry or self._closing.is_set()):
            wait_s = min(_IDLE_S, self._limiter.wait_s(), self._writer.retry_s, self._soon_at - time.monotonic())
            if wait_s <= 0:
                break
            is_rung = self._bell.wait(wait_s)
            self._bell.clear()
            if not is_rung:
                break
        self._is_idle = False
