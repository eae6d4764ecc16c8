"""Seat: one camera's place at a publisher, which one stream has at a time.

Owns the numbers of its frames: they go on when another stream takes the seat, whose source may count from 0 again, so
that no two results of one run of the program ever bear the same one.
"""

from __future__ import annotations

import threading


class Seat:
    """Of one camera, for as long as the program runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: object | None = None
        self._is_fresh = False
        self._offset = 0
        self._last = self._last_event = -1

    def take(self, holder: object) -> None:
        """From now on the seat is this one's, whoever had it."""
        with self._lock:
            self._holder, self._is_fresh = holder, True

    def leave(self, holder: object) -> bool:
        """Give the seat back; False when another has it by now."""
        with self._lock:
            if self._holder is not holder:
                return False
            self._holder = None
            return True

    def event_number(self, holder: object) -> int | None:
        """The number of the next event; None for one who does not have the seat."""
        with self._lock:
            if self._holder is not holder:
                return None
            self._last_event += 1
            return self._last_event

    def is_of(self, holder: object) -> bool:
        """Whether it is this one's."""
        return self._holder is holder

    def number(self, holder: object, seq: int) -> int | None:
        """The number that a frame bears in its message.

        Args:
            holder: whose frame it is.
            seq: its number in its source.

        Returns:
            The same but after a change of holders, where the source's numbers begin again; None for one who does not
            have the seat.
        """
        with self._lock:
            if self._holder is not holder:
                return None
            if self._is_fresh:
                self._is_fresh = False
                self._offset = max(0, self._last + 1 - seq)
            self._last = seq + self._offset
            return self._last
