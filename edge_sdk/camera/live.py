"""Cameras and network streams: read as fast as they deliver, reopened for ever.

Owns the reopening. After a failed read the same OpenCV capture never recovers, so it is thrown away.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from threading import Event

from edge_sdk.camera.backlog import Backlog
from edge_sdk.camera.capture import Capture
from edge_sdk.camera.slot import Slot
from edge_sdk.camera.stats import SourceStatus

_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 10.0
_UNREADABLE_LIMIT = 50  # in a row, about two seconds: what sends nothing but rubbish is lost, too


class LiveFeed:
    """Feeds a slot from a camera.

    Args:
        first: the opened capture.
        reopen: opens another one, or returns None.
        uniform: a random number from 0 to 1, for the jitter.
    """

    def __init__(
        self, first: Capture, reopen: Callable[[], Capture | None], uniform: Callable[[], float] = random.random
    ) -> None:
        self.fps = first.fps
        self.reopenings = 0
        self.unreadable = 0
        self.status = SourceStatus.OPENED
        self._first = first
        self._reopen = reopen
        self._uniform = uniform
        self._attempt = 0
        self._seq = 0

    def run(self, slot: Slot, stop: Event) -> None:
        """Feed the slot until `stop` is set; reopen whenever the camera is lost, for whatever reason."""
        capture: Capture | None = self._first
        while capture is not None:
            # Out of memory, or an error of OpenCV's that nobody foresaw: months later it may be over, the thread not.
            with contextlib.suppress(Exception):
                self._read(capture, slot, stop)
            with contextlib.suppress(Exception):
                capture.release()
            capture = self._reopened(stop)

    def _read(self, capture: Capture, slot: Slot, stop: Event) -> None:
        backlog = Backlog(capture.buffered_since_ns, capture.fps)
        unreadable_in_a_row = 0
        asked_ns = time.monotonic_ns()
        while not stop.is_set() and unreadable_in_a_row < _UNREADABLE_LIMIT and capture.grab():
            got_ns, got_at = time.monotonic_ns(), time.time()
            captured_ns = backlog.captured_ns(asked_ns, got_ns)
            image = capture.retrieve_into(slot.buffer())
            if image is None:
                unreadable_in_a_row += 1
                self.unreadable += 1
                continue
            unreadable_in_a_row = 0
            self._note_delivery()
            slot.put(image, captured_ns, got_at - (got_ns - captured_ns) / 1e9, self._seq)
            self._seq += 1
            asked_ns = time.monotonic_ns()

    def _note_delivery(self) -> None:
        self._attempt = 0
        if self.status is SourceStatus.LOST:
            self.status = SourceStatus.REOPENED
            self.reopenings += 1

    def _reopened(self, stop: Event) -> Capture | None:
        """Another capture, however long that takes; None once `stop` is set."""
        self.status = SourceStatus.LOST
        while not stop.wait(backoff_s(self._attempt, self._uniform())):
            self._attempt += 1
            capture: Capture | None = None
            with contextlib.suppress(Exception):
                capture = self._reopen()
            if capture is not None:
                return capture
        return None


def backoff_s(attempt: int, uniform: float) -> float:
    """Seconds to wait before an attempt: exponential with full jitter, so that many devices do not come back at once.

    Args:
        attempt: 0 and up.
        uniform: a random number from 0 to 1.
    """
    return uniform * min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(attempt, 10))
