"""Notices: when a device says what it has to say beside results: status and state on change, telemetry as it comes.

Owns the pace. What is retained goes out at once after every connection, then on change: the first of a burst at once,
the rest of it together after a second, the last one always.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from edge_sdk.publishing.board import Board
from edge_sdk.publishing.link import Kind
from edge_sdk.publishing.outbox import Message
from edge_sdk.publishing.post import REFUSED_S, Post
from edge_sdk.publishing.topics import Topics

_EVERY_S = 1.0


class _Retained:
    """One retained message, which changes now and then."""

    def __init__(self, kind: Kind, topic: str, version: Callable[[], int], encode: Callable[[], bytes]) -> None:
        self._kind, self.topic, self._version, self._encode = kind, topic, version, encode
        self.said = -1  # the version that was published last on this connection
        self._not_before = 0.0

    def forget(self, not_before: float = 0.0) -> None:
        self.said, self._not_before = -1, not_before

    @property
    def is_unsaid(self) -> bool:
        return self.said < 0

    def wait_s(self, now: float) -> float:
        return math.inf if self._version() == self.said else max(0.0, self._not_before - now)

    def take(self, now: float) -> tuple[Kind, Message]:
        self.said = self._version()  # first: what changes from here on is news again
        self._not_before = now + _EVERY_S
        return self._kind, Message(self.topic, self._encode())


class Notices:
    """Of one device.

    Args:
        board: what is said.
        topics: where.
        clock_s: monotonic seconds.

    Attributes:
        post: single messages, which come after status and state.
    """

    def __init__(self, board: Board, topics: Topics, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._board, self._clock_s = board, clock_s
        self._topic = topics.telemetry
        self._status = _Retained("status", topics.status, lambda: board.models, board.online)
        self._state = _Retained("state", topics.state, lambda: board.states, board.state)
        self._telemetry: deque[bytes] = deque(maxlen=1)
        self._is_ending = False
        self.post = Post(clock_s)

    def put_telemetry(self, payload: bytes) -> None:
        """Have this published, in place of an older one that was not yet."""
        self._telemetry.append(payload)

    def begin(self) -> None:
        """There is a new connection: whoever is there now knows nothing."""
        self._status.forget()
        self._state.forget()
        self.post.begin()

    def repeat_later(self, topic: str) -> None:
        """Have what is retained there published once more in a minute: the broker refused it."""
        for retained in (self._status, self._state):
            if retained.topic == topic:
                retained.forget(self._clock_s() + REFUSED_S)
        self.post.repeat_later(topic)

    def end(self) -> None:
        """The goodbye comes: what changed goes out at once, and no other word of being online."""
        self._is_ending = True

    @property
    def _has_news(self) -> bool:
        """Asked after every message, and nearly always false."""
        board = self._board
        is_new = board.states != self._state.said or board.models != self._status.said
        return is_new or bool(self._telemetry) or self.post.has_news

    def wait_s(self) -> float:
        """Seconds until there is something to say; infinity when nothing is known."""
        if not self._has_news:
            return math.inf
        if self._is_ending:
            answer_s = 0.0 if self.post.has_answers else math.inf
            return min(answer_s, *(retained.wait_s(math.inf) for retained in self._last()))
        now = self._clock_s()
        if self._telemetry:
            return 0.0
        return min(self._status.wait_s(now), self._state.wait_s(now), self.post.wait_s(now))

    def take(self) -> tuple[Kind, Message] | None:
        """What is to be said now, the status first; None when there is nothing."""
        if not self._has_news:
            return None
        now = self._clock_s()
        for retained in self._last() if self._is_ending else (self._status, self._state):
            if retained.wait_s(math.inf if self._is_ending else now) <= 0:
                return retained.take(now)
        if self._is_ending:
            return self.post.take(now) if self.post.has_answers else None
        if self._telemetry:
            return "telemetry", Message(self._topic, self._telemetry.popleft())
        return self.post.take(now)

    def _last(self) -> tuple[_Retained, ...]:
        """What there is to say before a goodbye, without waiting for its time."""
        return (self._status, self._state) if self._status.is_unsaid else (self._state,)
