"""What is wrong with an outbox at present, in words for people and not too often."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec

from edge_sdk.outbox.event import Losses, is_denial

EVENTS_LOST = "events_lost"
"""The name of the warning that events are lost."""

_EVERY_S = 60.0
_SELDOM_S = 86400.0  # the longest pause of a line that goes on: it would fill the journal
_REASONS = {
    "overflow": "more than [outbox] max_mb holds",
    "age": "older than [outbox] max_age_days",
    "quarantine": "refused by the broker or too large",
    "memory": "in memory only",
    "disk": "on a damaged disk",
}


def lost_in_words(losses: Losses) -> str:
    """Say how many events are lost by now, and why."""
    counts: dict[str, int] = msgspec.structs.asdict(losses)
    parts = ", ".join(f"{count} {_REASONS[why]}" for why, count in counts.items() if count)
    if losses.total == 1:
        return f"1 event is lost since the start: {parts}"
    return f"{losses.total} events are lost since the start: {parts}"


class OutboxWarnings:
    """The warnings of one outbox, by name; may be given from any thread."""

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
        """Have a function told the name of each warning and a line for people, those that there are already first.

        The line is empty once the warning is over.
        """
        self._listeners.append(listener)
        for name, line in list(self._lines.items()):
            listener(name, line)

    def say(self, name: str, line: str) -> None:
        """Give a warning, or take it back with an empty line; the same line is said once."""
        if self._lines.get(name, "") != line:
            self._lines[name] = line
            for listener in self._listeners:
                listener(name, line)

    def memory_only(self, why: str) -> None:
        """Say that nothing goes to disk at present."""
        self.say("outbox_disk", f"events wait in memory only: {why}")

    def encoded(self, cause: Exception | None) -> None:
        """Say that an event which had waited could not be encoded; None: one could."""
        line = f"an event is left out that cannot be encoded: {type(cause).__name__}: {cause}; mend who puts it"
        self.say("event_encoding", line if cause is not None else "")

    def fault(self, cause: Exception) -> None:
        """Say that something is wrong with the outbox itself."""
        self.say("outbox_fault", f"{type(cause).__name__}: {cause}; report this, events wait in memory")

    def rejected(self, topic: str, reason: str) -> None:
        """Say that the broker rejected an event."""
        self._rejected_topic, self._rejected_at = topic, self._clock_s()
        allow = "allow this device to write it in the broker's ACL"
        advice = allow if is_denial(reason) else "they are not sent; its log may say what to allow or to raise there"
        if self._is_time(topic + advice):  # and not the reason, which may hold a size
            self.say("events_refused", f"the broker does not take events of {topic}: {reason}; put aside, {advice}")

    def too_large(self, topic: str, size: int) -> None:
        """Say that an event of `size` bytes is above what may wait here."""
        self._rejected_topic, self._rejected_at = topic, self._clock_s()
        if self._is_time(f"{topic} large"):
            advice = "make it smaller, or raise [outbox] max_mb"
            self.say("events_refused", f"an event of {topic} is left out: {size} bytes are too many to wait; {advice}")

    def delivered(self, topic: str) -> None:
        """Take a rejection back once the broker takes an event of the same topic, a minute later at the earliest."""
        if topic == self._rejected_topic and self._clock_s() - self._rejected_at > _EVERY_S:
            self._rejected_topic = None
            self.say("events_refused", "")

    def lost(self, losses: Losses, *, is_last: bool = False) -> None:
        """Say how many events are lost by now; while the number grows, less and less often.

        Args:
            losses: since the program began.
            is_last: nothing is said after this.
        """
        if losses != self._lost and (is_last or self._is_time("lost")):
            self._lost = losses
            self.say(EVENTS_LOST, lost_in_words(losses) if losses.total else "")

    def _is_time(self, name: str) -> bool:
        now, not_before = self._clock_s(), self._not_before.get(name, -math.inf)
        if now < not_before:
            return False
        pause_s = self._pauses.get(name, 0.0)
        goes_on = now - not_before < max(_EVERY_S, pause_s)  # since it was said last
        self._pauses[name] = min(max(_EVERY_S, 2 * pause_s), _SELDOM_S) if goes_on else _EVERY_S
        self._not_before[name] = now + self._pauses[name]
        return True
