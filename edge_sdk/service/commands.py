"""Admission: which messages on the `cmd` topic are commands to carry out, and where their answers go.

Owns every refusal that needs no knowledge of cameras. What is not known to be harmless is refused: anybody who may
publish to the broker may have written it.

Inbox: messages that came and wait to be looked at; bounded, written by the publisher's thread.

Complaints: what people are told of commands that were refused: the first ones each, of many more how many.

A program that is wrong sends many; a person who mistypes a few finds each of them in the journal.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection

import msgspec
from msgspec import UNSET, UnsetType

from edge_sdk.core.logs import Say
from edge_sdk.core.toml import problems
from edge_sdk.messages.commands import CLASSES, Command, CommandClass, Complaint, RefusedError, class_of, example_of
from edge_sdk.messages.topics import Topics
from edge_sdk.publishing.connection import Incoming

_LARGEST_BYTES = 2048  # of a command; the longest that is valid has 300
_LONGEST_TOPIC = 200  # characters of a response topic
_LARGEST_CORRELATION = 128  # bytes; common clients send 16
_BURST, _PER_S = 20, 5.0  # a slider that is moved sends that many
_COMPLAIN_EVERY_S = 1.0
_KNOWN = (*CLASSES, "resume")
_SHOWN = 40  # characters of somebody else's text in a line
_LONGEST = 200  # of what is said of a field
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Named(msgspec.Struct, frozen=True):
    """What a message says of itself, whatever else is wrong with it."""

    command: object = UNSET
    id: object = UNSET


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A command to carry out, and where to answer."""

    command: Command
    topic: str
    correlation: bytes


class Turned(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is not carried out, and where to say so; the command's name and id where they could be read."""

    complaint: Complaint
    topic: str
    correlation: bytes
    name: str | UnsetType = UNSET
    id: str | UnsetType = UNSET


class Admission:
    """Of one device.

    Args:
        topics: of the device.
        allowed: classes of commands that are carried out.
        clock_s: monotonic seconds.
    """

    def __init__(
        self, topics: Topics, allowed: Collection[CommandClass], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._topics, self.allowed, self._clock_s = topics, frozenset(allowed), clock_s
        self._tokens, self._filled_at = float(_BURST), clock_s()
        self._complain_at, self._unanswered = -_COMPLAIN_EVERY_S, 0

    def admit(self, incoming: Incoming) -> Request | Turned | None:
        """Look at one message.

        Returns:
            What to do; None for nothing: of those that come too fast `passed_over` tells.
        """
        topic, correlation = self._topics.response, incoming.correlation
        name: str | UnsetType = UNSET
        sent_id: str | UnsetType = UNSET
        try:
            if incoming.retain and not incoming.payload:
                return None  # somebody takes a retained message away, as they were told to
            if not self._has_token():
                self._unanswered += 1
                return None
            if len(correlation) > _LARGEST_CORRELATION:
                correlation = b""
                raise RefusedError("malformed", f"correlation data is above {_LARGEST_CORRELATION} bytes")
            topic = self._response_topic(incoming.response_topic)
            if len(incoming.payload) > _LARGEST_BYTES:
                raise RefusedError("too_large", f"{len(incoming.payload)} bytes, expected {_LARGEST_BYTES} at most")
            name, sent_id = _named(incoming.payload)
            if incoming.retain:
                raise RefusedError("retained", self._how_to_take_away())
            return Request(command=self._command(incoming.payload, name), topic=topic, correlation=correlation)
        except RefusedError as refusal:
            known = name if name in _KNOWN else UNSET
            return Turned(complaint=refusal.complaint, topic=topic, correlation=correlation, name=known, id=sent_id)

    def go_on_from(self, before: Admission) -> None:
        """Count on as another one did: a reload is no way to send more."""
        self._tokens, self._filled_at = before._tokens, before._filled_at
        self._complain_at, self._unanswered = before._complain_at, before._unanswered

    def overflow(self, count: int) -> None:
        """There was no room for so many messages; they are among those that are passed over."""
        self._unanswered += count

    def passed_over(self) -> Turned | None:
        """How many came too fast since this was said last; once a second at most, and None where there are none."""
        now = self._clock_s()
        if not self._unanswered or now - self._complain_at < _COMPLAIN_EVERY_S:
            return None
        count, self._unanswered, self._complain_at = self._unanswered, 0, now
        were = "1 command was" if count == 1 else f"{count} commands were"
        text = f"{were} passed over, send again what matters; {_BURST} at once and {_PER_S:g} a second are looked at"
        # To the device's own topic and nobody else's: it answers several.
        return Turned(complaint=Complaint(code="too_fast", message=text), topic=self._topics.response, correlation=b"")

    def _has_token(self) -> bool:
        now = self._clock_s()
        self._tokens = min(_BURST, self._tokens + (now - self._filled_at) * _PER_S)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _how_to_take_away(self) -> str:
        taking = f"mosquitto_pub -r -n -t {self._topics.command}"
        return (
            "a retained message is no command, it would come again at every connection; "
            f"take it away ({taking}), and send it without retain"
        )

    def _response_topic(self, wanted: str) -> str:
        """Only the device's own `res` and what is below: whoever may write commands may not make it write elsewhere."""
        own = self._topics.response
        if not wanted or wanted == own:
            return own
        rest = wanted.removeprefix(f"{own}/")
        is_below = rest != wanted and rest.isprintable() and not {"+", "#"} & set(rest) and all(rest.split("/"))
        if not is_below or len(wanted) > _LONGEST_TOPIC:
            raise RefusedError("response_topic", f"got {_shown(wanted)}, expected {own} or below it")
        return wanted

    def _command(self, payload: bytes, name: str | UnsetType) -> Command:
        if isinstance(name, UnsetType):
            raise RefusedError("malformed", _no_command(payload))
        if name not in _KNOWN:
            raise RefusedError("unknown_command", f"no command {_shown(name)}, expected {', '.join(CLASSES)} or resume")
        wanted = "pause" if name == "resume" else name
        if wanted not in self.allowed:  # before its fields are looked at: what is off says nothing
            raise RefusedError("not_allowed", self._how_to_allow(name, wanted))
        try:
            command: Command = msgspec.json.decode(payload, type=Command)
        except _UNREADABLE as cause:
            raise RefusedError("malformed", _wrong_field(str(cause), name, payload)) from None
        if class_of(command) != wanted:  # a key that stands there twice
            raise RefusedError("malformed", "command stands there twice, expected it once")
        return command

    def _how_to_allow(self, name: str, wanted: str) -> str:
        named = ", ".join(f'"{each}"' for each in CLASSES if each in self.allowed or each == wanted)
        covered = ", which pause stands for" if name == "resume" else ""
        return f"{name} is off here{covered}; [commands] allow = [{named}] in its configuration turns it on too"


def _no_command(payload: bytes) -> str:
    expected = 'expected a JSON object such as {"command": "report_state"}'
    if not payload:
        return f"an empty message, {expected}"
    try:
        found = msgspec.json.decode(payload)
    except _UNREADABLE as cause:
        got = _shown(payload.decode("utf-8", "replace"))
        return _bounded(f"{got} cannot be read ({cause}), {expected}")
    got = "one without a text as its command" if isinstance(found, dict) else _shown(payload.decode())
    return f"got {got}, {expected}"


def _wrong_field(cause: str, name: str, payload: bytes) -> str:
    example = example_of(name)
    try:
        found = next(problems(msgspec.json.decode(payload), type(example)), None)
    except _UNREADABLE:
        found = None
    words = found.text if found else cause
    return f"{_bounded(words)}; such as {msgspec.json.encode(example).decode()}"


def _named(payload: bytes) -> tuple[str | UnsetType, str | UnsetType]:
    try:
        named = msgspec.json.decode(payload, type=_Named)
    except _UNREADABLE:
        return UNSET, UNSET
    return (
        named.command if isinstance(named.command, str) else UNSET,
        named.id if isinstance(named.id, str) and len(named.id) <= 64 else UNSET,
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _bounded(text: str) -> str:
    # A key of theirs may be in it, and the line goes to a terminal too.
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


_MOST = 64


class CommandInbox:
    """A `Receiver` that only keeps what comes until somebody takes it.

    Args:
        most: messages that wait; what comes beyond is counted, and forgotten.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._messages: deque[Incoming] = deque()
        self._refusals: deque[str] = deque(maxlen=8)
        self._lost = 0
        self._lock = threading.Lock()

    def receive(self, incoming: Incoming) -> None:
        """Keep one message, where there is room."""
        with self._lock:
            if len(self._messages) < self._most:
                self._messages.append(incoming)
            else:
                self._lost += 1

    def refused(self, line: str) -> None:
        """Keep what the broker does not let us read."""
        self._refusals.append(line)

    def take(self) -> tuple[list[Incoming], int]:
        """What waits, in order, and how many there was no room for."""
        if not self._messages:
            return [], 0
        with self._lock:
            taken, lost = list(self._messages), self._lost
            self._messages.clear()
            self._lost = 0
            return taken, lost

    def take_refusals(self) -> list[str]:
        """Lines for people."""
        lines = []
        while self._refusals:
            lines.append(self._refusals.popleft())
        return lines


_AT_ONCE = 5
_SAY_EVERY_S = 10.0


class RejectionLog:
    """Of one device; used from the daemon's main thread.

    Args:
        say: takes one line for people.
        clock_s: monotonic seconds.
    """

    def __init__(self, say: Say, clock_s: Callable[[], float]) -> None:
        self._say, self._clock_s = say, clock_s
        self._began_at, self._said = clock_s(), 0  # of the present ten seconds
        self._unsaid = Counter[str]()

    def take(self, code: str, line: str) -> None:
        """One command was refused."""
        self.look()
        if self._said >= _AT_ONCE:
            self._unsaid[code] += 1
            return
        self._said += 1
        self._say(line)

    def look(self) -> None:
        """Tell of those that were not said, once their ten seconds are over."""
        if self._clock_s() - self._began_at < _SAY_EVERY_S:
            return
        self._began_at, self._said = self._clock_s(), 0
        unsaid, self._unsaid = self._unsaid, Counter()
        if unsaid:
            kinds = ", ".join(f"{count} {code}" for code, count in unsaid.most_common())
            self._say(f"{unsaid.total()} more commands were refused in 10 s, as their answers say: {kinds}")
