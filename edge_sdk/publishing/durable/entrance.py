"""Entrance: events from `put` to the shelf, where they get their numbers.

Owns what has no number yet: what is held for its rate, and what comes before the file says which numbers were given.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from edge_sdk.publishing.durable.held import Encode
from edge_sdk.publishing.durable.shelf import Shelf
from edge_sdk.publishing.pace import Pace

_MOST_OUTCOMES = 100  # that nobody was told of yet
_MOST_EARLY = 10_000  # events that wait for the file; of more the oldest are lost, as of those that wait for a commit

_Put: TypeAlias = tuple[str, str, Encode]


class Entrance:
    """Of one outbox; its methods may be called from any thread.

    Args:
        shelf: takes events in their order.
        on_failure: called by `release` with what the encoding of an event raised, and with None where it raised
            nothing; only of those that had to wait for their number. Where it fails at once, who puts it is told.
        is_open: whether there is no file whose numbers are to be known first.
    """

    def __init__(self, shelf: Shelf, on_failure: Callable[[Exception | None], None], *, is_open: bool) -> None:
        self._shelf, self._on_failure = shelf, on_failure
        self._early: deque[_Put] = deque()
        self._entering: deque[_Put] = deque()
        self._outcomes: deque[Exception | None] = deque(maxlen=_MOST_OUTCOMES)
        self._lock = threading.Lock()
        self._is_open = threading.Event()
        if is_open:
            self._is_open.set()
        self._pace: Pace[_Put, int | None] = Pace(None, self._enter)

    def limit(self, max_per_s: float | None) -> None:
        """Let so many of each camera in a second; before the first of them comes."""
        self._pace = Pace(max_per_s, self._enter, go_late=lambda event: self._try(self._enter, event))

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
