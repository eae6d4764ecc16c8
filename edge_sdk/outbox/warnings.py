"""Warnings about an outbox: the lines for people, and how often each is repeated."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec

from edge_sdk.outbox.event import Losses, is_denial

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
        self._not_before: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._lost = Losses()

    def listen(self, listener: Callable[[str, str], None]) -> None:
        """Call a function with the name and line of each present warning, and of each later one.

        The line is empty once the warning is over.
        """
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

    def delivered(self, topic: str) -> None:
        """Clear a rejection when the broker accepts an event of the same topic at least a minute later."""
        if topic == self._rejected_topic and self._clock_s() - self._rejected_at > _EVERY_S:
            self._rejected_topic = None
            self.say("events_refused", "")

    def lost(self, losses: Losses, *, is_last: bool = False) -> None:
        """Warn how many events are lost so far; while the number grows, less and less often.

        Args:
            losses: the losses since the program began.
            is_last: whether this is the last call.
        """
        if losses != self._lost and (is_last or self._is_time("lost")):
            self._lost = losses
            self.say(EVENTS_LOST, lost_in_words(losses) if losses.total else "")

    def _is_time(self, name: str) -> bool:
        now, not_before = self._clock_s(), self._not_before.get(name, -math.inf)
        if now < not_before:
            return False
        pause_s = self._pauses.get(name, 0.0)
        goes_on = now - not_before < max(_EVERY_S, pause_s)  # the losses go on since the last line
        self._pauses[name] = min(max(_EVERY_S, 2 * pause_s), _SELDOM_S) if goes_on else _EVERY_S
        self._not_before[name] = now + self._pauses[name]
        return True
