"""Aside: events that the broker refused, on their way to the file's quarantine; and when they are offered again.

What its ACL denied is: at every start, and once the broker takes an event of the same topic, for somebody has mended
the ACL. Other reasons (too large, an invalid payload) hold for the message as long as it is the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from edge_sdk.publishing.durable.held import Held

_REFUSED = 100  # events that wait to be put aside
_EVERY_S = 60.0  # of one topic, at most: a broker may deny one event and take the next, whatever its ACL says
_DENIED = "uthori"  # of "Not authorized", as brokers and paho write it


def is_denial(reason: str) -> bool:
    """Whether a broker's reason says that this device may not write there."""
    return _DENIED in reason


class Aside:
    """Of one outbox, for the holder of its lock.

    Args:
        clock_s: monotonic seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._refused: deque[tuple[Held, str]] = deque(maxlen=_REFUSED)
        self._denied: dict[str, float] = {}  # topics, and from when on their events may be offered again
        self._wanted: set[str] = set()

    def refuse(self, event: Held, reason: str) -> None:
        """The broker refused an event."""
        self._refused.append((event, reason))
        if is_denial(reason):
            self._denied.setdefault(event.topic, 0.0)

    def refused(self) -> list[tuple[Held, str]]:
        """What is not put aside yet."""
        return list(self._refused)

    def before(self, number: int) -> int:
        """The largest id up to this one, of which and before which none waits here."""
        return min([number, *(event.id - 1 for event, _ in self._refused)])

    def put_aside(self, refused: Sequence[tuple[Held, str]]) -> None:
        """These are."""
        done = {event.id for event, _ in refused}
        self._refused = deque((one for one in self._refused if one[0].id not in done), maxlen=_REFUSED)

    def delivered(self, topic: str) -> None:
        """The broker took an event."""
        not_before = self._denied.get(topic)
        if not_before is not None and self._clock_s() >= not_before:
            self._denied[topic] = self._clock_s() + _EVERY_S
            self._wanted.add(topic)

    def take_topics(self) -> set[str]:
        """Whose events are to be offered again, each told once."""
        wanted, self._wanted = self._wanted, set()
        return wanted
