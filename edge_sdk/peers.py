"""Peers: the streams of one process, each of which takes from the others what it runs on.

Owns whose turn it is to step down or up. Each governor judges its own frames; left alone, the streams that happen to
step down first make room for the others, and stay below. It has no clock and no I/O.
"""

from __future__ import annotations

import threading

_RISING_NS = 30_000_000_000  # one bad window does not mean that a stream has no wish to rise
_JUDGED_NS = 4_000_000_000  # after a step up: two windows of a governor, which sees then what came of it


class Place:
    """Where one stream stands.

    Args:
        peers: whose place it is.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._steps = 0
        self._missing_until_ns = self._rising_until_ns = 0
        self._is_asked = self._has_waited = False

    def stand(self, steps: int) -> None:
        """The stream runs so many rungs below the top now; what was noted says nothing of that."""
        with self._peers.lock:
            self._steps = steps
            self._missing_until_ns = self._rising_until_ns = 0
            self._is_asked = self._has_waited = False

    def note(self, *, misses: bool, rises: bool, until_ns: int) -> None:
        """Say how the stream does.

        Args:
            misses: whether it is without the quiet that a step up needs.
            rises: whether it would step up after some more of it.
            until_ns: how long that holds, unless something else is said before; monotonic nanoseconds.
        """
        with self._peers.lock:
            self._missing_until_ns = until_ns if misses else 0
            self._has_waited = self._has_waited and misses
            if rises:
                self._rising_until_ns = until_ns + _RISING_NS

    def take_asked(self) -> bool:
        """Whether another stream asked this one to step down in its place; said once."""
        with self._peers.lock:
            was_asked, self._is_asked = self._is_asked, False
            return was_asked

    def gives_way(self, now_ns: int) -> bool:
        """Ask the stream that stands highest to step down in place of this one, as long as it has trouble too.

        Where none that stands higher has, it is asked once, for its next window; trouble that goes on is one's own.

        Returns:
            False: this one is to step down itself.
        """
        with self._peers.lock:
            above = [place for place in self._peers.places if place._steps < self._steps]
            missing = [place for place in above if place._missing_until_ns > now_ns]
            if not missing and (self._has_waited or not above):
                return False
            self._has_waited = True
            min(missing or above, key=lambda place: place._steps)._is_asked = True
            return True

    def may_rise(self, now_ns: int) -> bool:
        """Whether this one may step up, and does: none that stands lower is about to, and the last step was judged."""
        peers = self._peers
        with peers.lock:
            if now_ns < peers.risen_ns + _JUDGED_NS:
                return False
            if any(place._steps > self._steps and place._rising_until_ns > now_ns for place in peers.places):
                return False
            peers.risen_ns = now_ns
            return True

    def leave(self) -> None:
        """The stream is over; may be called twice."""
        with self._peers.lock:
            if self in self._peers.places:
                self._peers.places.remove(self)


class Peers:
    """Of one process; for several threads.

    Attributes:
        lock: held while any of this is read or changed.
        places: of the streams that run.
        risen_ns: when one of them stepped up last, monotonic nanoseconds.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.places: list[Place] = []
        self.risen_ns = -_JUDGED_NS

    def join(self) -> Place:
        """A place for one more stream."""
        place = Place(self)
        with self.lock:
            self.places.append(place)
        return place
