"""Post: single messages beside results: answers once, and what is retained for those who come later.

Owns the pace of what is kept: of one topic the first word at once, what changes within a second together, the last one
always; and all of it again after every connection.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from edge_sdk.publishing.link import Kind
from edge_sdk.publishing.outbox import Message

REFUSED_S = 60.0
"""Until what the broker refused is offered again."""

_EVERY_S = 1.0
_MOST_ONCE = 32  # answers that wait for a broker; a requester does not wait for a hundred either


class _Kept:
    """What stands on one retained topic."""

    __slots__ = ("kind", "not_before", "payload")

    def __init__(self, kind: Kind, payload: bytes) -> None:
        self.kind, self.payload, self.not_before = kind, payload, 0.0


class Post:
    """Written from any thread, taken from by the publisher's.

    Args:
        clock_s: monotonic seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._kept: dict[str, _Kept] = {}
        self._unsaid: dict[str, None] = {}  # topics of those that are to be said, in that order
        self._once: deque[tuple[Kind, Message]] = deque(maxlen=_MOST_ONCE)
        self._lock = threading.Lock()

    def send(self, kind: Kind, message: Message) -> None:
        """Have this published once; of more than 32 that wait the oldest goes."""
        self._once.append((kind, message))

    def keep(self, kind: Kind, topic: str, payload: bytes) -> None:
        """Have this stand on a topic from now on; without a byte nothing stands there any more."""
        with self._lock:
            kept = self._kept.get(topic)
            if kept is None:
                kept = self._kept[topic] = _Kept(kind, payload)
            elif kept.payload == payload:
                return
            kept.payload = payload
            self._unsaid[topic] = None

    def repeat(self, topic: str) -> None:
        """Say once more what stands there."""
        with self._lock:
            if topic in self._kept:
                self._unsaid[topic] = None

    def repeat_later(self, topic: str) -> None:
        """The same in a minute, where something is kept there: the broker refused it."""
        with self._lock:
            kept = self._kept.get(topic)
            if kept is not None:
                kept.not_before = self._clock_s() + REFUSED_S
                self._unsaid[topic] = None

    def begin(self) -> None:
        """There is a new connection: whoever is there now knows nothing."""
        with self._lock:
            for topic, kept in self._kept.items():
                kept.not_before = 0.0
                self._unsaid[topic] = None

    @property
    def has_news(self) -> bool:
        """Whether anything is to be said, now or soon."""
        return bool(self._once) or bool(self._unsaid)

    @property
    def has_answers(self) -> bool:
        """Whether something that is said once waits."""
        return bool(self._once)

    def wait_s(self, now: float) -> float:
        """Seconds until there is something to say; infinity when nothing is known."""
        if self._once:
            return 0.0
        with self._lock:
            due = min((self._kept[topic].not_before for topic in self._unsaid), default=math.inf)
        return max(0.0, due - now)

    def take(self, now: float) -> tuple[Kind, Message] | None:
        """What is to be said now; None when there is nothing."""
        if self._once:
            return self._once.popleft()
        with self._lock:
            for topic in self._unsaid:
                kept = self._kept[topic]
                if kept.not_before <= now:
                    break
            else:
                return None
            del self._unsaid[topic]
            kept.not_before = now + _EVERY_S
            return kept.kind, Message(topic, kept.payload)

    def now(self) -> float:
        """Of its clock."""
        return self._clock_s()
