"""Poison: finds the message at which a broker ends connections, so that it does not hold up all others for ever.

Before MQTT 5 a broker cannot say that it does not take a message (too large, not allowed), and some do not say it with
MQTT 5 either: they hang up. What was on its way then is sent again, and they hang up again. A message for which a link
is too slow does the same: it takes longer than the broker may be silent, each time.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_sdk.publishing.link import Kind
from edge_sdk.publishing.outbox import Message
from edge_sdk.publishing.uplink import UNSENT_BYTES

_SUSPICIOUS = 2  # connections in a row that the broker ended with something of a camera on its way
# Of them with one and the same message alone on its way, after everything else was answered. Twice as many for the next
# one while nothing is taken in between: a broker that crashes at whatever comes must not cost one after the other.
_SURE = 3


class Poison:
    """Of one broker, over its connections; for the publisher's thread."""

    def __init__(self) -> None:
        self._ends = 0
        self._needed = _SURE
        self._touchy, self._slow = _Suspect(), _Suspect()

    @property
    def is_suspected(self) -> bool:
        """Whether messages go one by one, each when the one before was answered."""
        return self._ends >= _SUSPICIOUS

    @property
    def hint(self) -> str:
        """For people; empty while nothing is suspected."""
        line = "; or is there a message that it does not take? They go one by one now, to find it"
        return line if self.is_suspected else ""

    def relax(self) -> None:
        """A connection held: there is none, or it is not on its way."""
        self._ends = 0
        self._touchy.clear()

    def took(self) -> None:
        """The broker took something of a camera."""
        self._needed = _SURE

    def ended(self, flying: Sequence[tuple[Kind, Message]]) -> tuple[Kind, Message] | None:
        """The broker ended a connection.

        Args:
            flying: what was on its way, oldest first.

        Returns:
            The message that is to blame; None where that is not sure.
        """
        if not any(message.camera for _, message in flying):
            return None
        was_alone = self.is_suspected and len(flying) == 1
        self._ends += 1
        if not was_alone:
            return None
        if self._touchy.times(*flying[0]) < self._needed:
            return None
        self._needed *= 2
        self.relax()
        return flying[0]

    def timed_out(self, flying: Sequence[tuple[Kind, Message]]) -> tuple[Kind, Message] | None:
        """Nothing came from the broker for too long; that a connection held before says nothing of this.

        Args:
            flying: what was on its way.

        Returns:
            The message for which the link is too slow; None where that is not sure.
        """
        # Nobody waits for less: the kernel takes it at once.
        large = [(kind, message) for kind, message in flying if message.camera and len(message.payload) > UNSENT_BYTES]
        if not large:
            return None
        largest = max(large, key=lambda one: len(one[1].payload))
        if self._slow.times(*largest) < _SURE:
            return None
        self._slow.clear()
        return largest


class _Suspect:
    """One message, and how often in a row."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._who: tuple[Kind, str, int | None] | None = None
        self._times = 0

    def times(self, kind: Kind, message: Message) -> int:
        """Once more."""
        who = (kind, message.topic, message.seq)
        self._times = self._times + 1 if who == self._who else 1
        self._who = who
        return self._times
