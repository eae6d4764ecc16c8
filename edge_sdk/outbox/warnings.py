"""Complaints: what an outbox says of events that are lost or refused, in words and not too often.

Troubles: what is wrong with an outbox at present, and who is told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec

from edge_sdk.outbox.event import Losses, is_denial

EVENTS_LOST = "events_lost"
"""The name of that warning."""

_EVERY_S = 60.0
_SELDOM_S = 86400.0  # at the longest, of what goes on: it would fill the journal
_ADVICE = {
    "overflow": "more than [outbox] max_mb holds",
    "age": "older than [outbox] max_age_days",
    "quarantine": "refused by the broker or too large",
    "memory": "in memory only",
    "disk": "on a damaged disk",
}


class LossWarnings:
    """Of one outbox.

    Args:
        say: takes a name and a line; an empty line takes it back.
        clock_s: monotonic seconds.
    """

    def __init__(self, say: Callable[[str, str], None], clock_s: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock_s = say, clock_s
        self._refused_topic: str | None = None
        self._refused_at = 0.0
        self._not_before: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._lost = Losses()

    def refused(self, topic: str, reason: str) -> None:
        """The broker refused an event."""
        self._refused_topic, self._refused_at = topic, self._clock_s()
        allow = "allow this device to write it in the broker's ACL"
        advice = allow if is_denial(reason) else "they are not sent; its log may say what to allow or to raise there"
        if self._is_time(topic + advice):  # one of a class: reasons hold sizes
            self._say("events_refused", f"the broker does not take events of {topic}: {reason}; put aside, {advice}")

    def too_large(self, topic: str, size: int) -> None:
        """An event is above what may wait here."""
        self._refused_topic, self._refused_at = topic, self._clock_s()
        if self._is_time(f"{topic} large"):
            advice = "make it smaller, or raise [outbox] max_mb"
            self._say("events_refused", f"an event of {topic} is left out: {size} bytes are too many to wait; {advice}")

    def delivered(self, topic: str) -> None:
        """It took one; that it refused one stands for a while after that."""
        if topic == self._refused_topic and self._clock_s() - self._refused_at > _EVERY_S:
            self._refused_topic = None
            self._say("events_refused", "")

    def lost(self, losses: Losses, *, is_last: bool = False) -> None:
        """So many are lost by now; the same number is said once, and while it grows less and less often.

        Args:
            losses: of all time.
            is_last: nothing is said after this.
        """
        if losses != self._lost and (is_last or self._is_time("lost")):
            self._lost = losses
            self._say(EVENTS_LOST, lost_in_words(losses) if losses.total else "")

    def _is_time(self, name: str) -> bool:
        now, not_before = self._clock_s(), self._not_before.get(name, -math.inf)
        if now < not_before:
            return False
        pause_s = self._pauses.get(name, 0.0)
        goes_on = now - not_before < max(_EVERY_S, pause_s)  # since it was said last
        self._pauses[name] = min(max(_EVERY_S, 2 * pause_s), _SELDOM_S) if goes_on else _EVERY_S
        self._not_before[name] = now + self._pauses[name]
        return True


def lost_in_words(losses: Losses) -> str:
    """How many by now, and why, for people."""
    counts: dict[str, int] = msgspec.structs.asdict(losses)
    parts = ", ".join(f"{count} {_ADVICE[why]}" for why, count in counts.items() if count)
    if losses.total == 1:
        return f"1 event is lost since the start: {parts}"
    return f"{losses.total} events are lost since the start: {parts}"


class OutboxWarnings:
    """Of one outbox; said from any thread.

    Args:
        listener: takes a name and a line for people, empty once it is over; None: nobody does so far.
    """

    def __init__(self, listener: Callable[[str, str], None] | None) -> None:
        self._listeners = [] if listener is None else [listener]
        self._lines: dict[str, str] = {}
        self._failure = ""  # of a listener

    def listen(self, listener: Callable[[str, str], None]) -> None:
        """Have another one told, what is so already first."""
        self._listeners.append(listener)
        for name, line in list(self._lines.items()):
            listener(name, line)

    def say(self, name: str, line: str) -> None:
        """Something is wrong, or, with an empty line, is no longer; said once."""
        if self._lines.get(name, "") == line:
            return
        self._lines[name] = line
        failure = next(filter(None, [_failure(listener, name, line) for listener in self._listeners]), "")
        if failure != self._failure:  # the others say it, and that it is over
            self._failure = failure
            for listener in self._listeners:
                _failure(listener, "callback/on_trouble", failure)

    def say_memory_only(self, why: str) -> None:
        """Nothing goes to disk at present."""
        self.say("outbox_disk", f"events wait in memory only: {why}")

    def say_unencoded(self, cause: Exception | None) -> None:
        """An event that waited could not be encoded; None: one could."""
        line = f"an event is left out that cannot be encoded: {type(cause).__name__}: {cause}; mend who puts it"
        self.say("event_encoding", line if cause is not None else "")

    def say_fault(self, cause: Exception) -> None:
        """Something is wrong with the outbox itself."""
        self.say("outbox_fault", f"{type(cause).__name__}: {cause}; report this, events wait in memory")


def _failure(listener: Callable[[str, str], None], name: str, line: str) -> str:
    """Tell somebody something, who must not be able to end what keeps events; what it raised, for people."""
    try:
        listener(name, line)
    except Exception as cause:  # noqa: BLE001 - said, to the others
        return f"on_trouble raised {type(cause).__name__}: {cause}; events are kept without it, mend it"
    return ""
