"""Poison: finds the message at which a broker ends connections, so that it does not hold up all others for ever.

Before MQTT 5 a broker cannot say that it does not take a message (too large, not allowed), and some do not say it with
MQTT 5 either: they hang up. What was on its way then is sent again, and they hang up again.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_sdk.publishing.link import Kind
from edge_sdk.publishing.outbox import Message

_SUSPICIOUS = 2  # connections in a row that the broker ended with something of a camera on its way
# Of them with one and the same message alone on its way, after everything else was answered. Twice as many for the next
# one while nothing is taken in between: a broker that crashes at whatever comes must not cost one after the other.
_SURE = 3


class Poison:
    """Of one broker, over its connections; for the publisher's thread."""

    def __init__(self) -> None:
        self._ends = self._tries = 0
        self._needed = _SURE
        self._suspect: tuple[Kind, str, int | None] | None = None

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
        self._ends = self._tries = 0
        self._suspect = None

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
        [(kind, message)] = flying
        suspect = (kind, message.topic, message.seq)
        self._tries = self._tries + 1 if suspect == self._suspect else 1
        self._suspect = suspect
        if self._tries < self._needed:
            return None
        self._needed *= 2
        self.relax()
        return kind, message
