"""The values of an event outbox: one queued event, the counts and losses of all, and the warnings about them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from edge_sdk.messages.schema import Message, MessageKind

Encode: TypeAlias = Callable[[int], bytes]
"""Function that encodes an event's message with the number that it takes."""

_ROW_BYTES = 96
"""Approximate cost in bytes of an event's row, index entry and object, without its payload and topic."""
_DENIED = "uthori"  # of "Not authorized", as brokers and paho write it


class QueuedEvent(Message, frozen=True, gc=False):
    """One event that waits in an outbox.

    `seq` is its number among the camera's events. `id` is its place among all events of the outbox, from 1, in whose
    order they are sent. `put_s` is the time at which it was put, in seconds of the outbox's clock.
    """

    kind: MessageKind = "event"
    seq: int = 0
    id: int = 0
    put_s: float = 0.0

    @property
    def cost(self) -> int:
        """The bytes that the event counts against a bound."""
        return len(self.payload) + len(self.topic) + _ROW_BYTES


def is_denial(reason: str) -> bool:
    """Return whether a broker's reason says that this device is not authorized to publish to the topic."""
    return _DENIED in reason


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """How many events never reach the broker, by reason, since the program began.

    Attributes:
        overflow: the oldest events, dropped because the file reached its bound.
        age: events that waited for longer than the bound allows.
        quarantine: events that the broker rejects (too large, not authorized); the file keeps them unsent.
        memory: events in memory only, because the disk failed, that were dropped for room or at the program's end.
        disk: events that cannot be read back from the disk, as far as that is known.
    """

    overflow: int = 0
    age: int = 0
    quarantine: int = 0
    memory: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """Return the sum of all losses."""
        return self.overflow + self.age + self.quarantine + self.memory + self.disk


class EventStats(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the events of all cameras since the program began.

    At every moment `put` + `restored` = `delivered` + `waiting` + `lost.total`.

    Attributes:
        put: events given to `put`.
        restored: events that earlier starts had left on disk or in quarantine, and that are sent now.
        waiting: events that are not at the broker yet.
        lost: events that the broker never gets, by reason.
        is_durable: whether new events go to disk; also False before the first event, and where no file is configured.
        set_aside: number of damaged files that were set aside.
        limited: events left out because more came than `max_per_s` allows; no other count includes them.
    """

    put: int = 0
    restored: int = 0
    waiting: int = 0
    delivered: int = 0
    lost: Losses = Losses()
    is_durable: bool = False
    set_aside: int = 0
    limited: int = 0


EVENTS_LOST = "events_lost"
"""Name of the warning that events are lost."""

_EVERY_S = 60.0
_SELDOM_S = 86400.0  # longest pause between repetitions of a line, so that it does not fill the journal
_REASONS = {
    "overflow": "more than [outbox] max_mb holds",
    "age": "older than [outbox] max_age_days",
    "quarantine": "refused by the broker or too large",
    "memory": "in memory only",
    "disk": "on a damaged disk",
}


def lost_in_words(losses: Losses) -> str:
    """Return in words how many events are lost so far, and why."""
    counts: dict[str, int] = msgspec.structs.asdict(losses)
    parts = ", ".join(f"{count} {_REASONS[why]}" for why, count in counts.items() if count)
    if losses.total == 1:
        return f"1 event is lost since the start: {parts}"
    return f"{losses.total} events are lost since the start: {parts}"


class OutboxWarnings:
    """The warnings of one outbox, by name; its methods may be called from any thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._listeners: list[Callable[[str, str], None]] = []
        self._lines: dict[str, str] = {}
        self._rejected_topic: str | None = None
        self._rejected_at = 0.0
        self._repeats: dict[str, tuple[float, float]] = {}  # by name: not before this time, and the last pause
        self._lost = Losses()

    def listen(self, listener: Callable[[str, str], None]) -> None:
        """Call a function with the name and line of each present and later warning; an empty line ends a warning."""
        self._listeners.append(listener)
        for name, line in list(self._lines.items()):
            listener(name, line)

    def say(self, name: str, line: str) -> None:
        """Set a warning, or clear it with an empty line; an unchanged line is not repeated."""
        if self._lines.get(name, "") != line:
            self._lines[name] = line
            for listener in self._listeners:
                listener(name, line)

    def memory_only(self, why: str) -> None:
        """Warn that events are in memory only at present."""
        self.say("outbox_disk", f"events wait in memory only: {why}")

    def encoded(self, cause: Exception | None) -> None:
        """Warn that an event which had waited could not be encoded; None clears the warning."""
        line = f"an event is left out that cannot be encoded: {type(cause).__name__}: {cause}; mend who puts it"
        self.say("event_encoding", line if cause is not None else "")

    def fault(self, cause: Exception) -> None:
        """Warn of an unexpected error in the outbox itself."""
        self.say("outbox_fault", f"{type(cause).__name__}: {cause}; report this, events wait in memory")

    def rejected(self, topic: str, reason: str) -> None:
        """Warn that the broker rejected an event."""
        self._rejected_topic, self._rejected_at = topic, self._clock_s()
        allow = "allow this device to write it in the broker's ACL"
        advice = allow if is_denial(reason) else "they are not sent; its log may say what to allow or to raise there"
        if self._is_time(topic + advice):  # without the reason, which may contain a size
            self.say("events_refused", f"the broker does not take events of {topic}: {reason}; put aside, {advice}")

    def too_large(self, topic: str, size: int) -> None:
        """Warn that an event of `size` bytes is too large for this outbox."""
        self._rejected_topic, self._rejected_at = topic, self._clock_s()
        if self._is_time(f"{topic} large"):
            advice = "make it smaller, or raise [outbox] max_mb"
            self.say("events_refused", f"an event of {topic} is left out: {size} bytes are too many to wait; {advice}")

    def delivered(self, topic: str) -> bool:
        """Clear a rejection, and return True, when the broker accepts an event of that topic over a minute later."""
        is_over = topic == self._rejected_topic and self._clock_s() - self._rejected_at > _EVERY_S
        if is_over:
            self._rejected_topic = None
            self.say("events_refused", "")
        return is_over

    def lost(self, losses: Losses, *, is_last: bool = False) -> None:
        """Warn how many events are lost since the program began, less and less often; `is_last` warns in any case."""
        if losses != self._lost and (is_last or self._is_time("lost")):
            self._lost = losses
            self.say(EVENTS_LOST, lost_in_words(losses) if losses.total else "")

    def _is_time(self, name: str) -> bool:
        now = self._clock_s()
        not_before, pause_s = self._repeats.get(name, (now, 0.0))
        if now < not_before:
            return False
        pause_s = min(max(_EVERY_S, 2 * pause_s), _SELDOM_S)
        self._repeats[name] = now + pause_s, pause_s
        return True
