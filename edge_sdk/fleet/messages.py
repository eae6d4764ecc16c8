"""Read the messages of a fleet for `edge-sdk watch`: the sender, the content, and a summary in a few words.

`DeviceAddress.of` reads a topic and `read` a message's bytes; both accept anything that is published and never raise.
`record_of` writes any message as a line of JSON. `plain`, `fitted` and `padded` make text from the network safe for a
terminal: without control characters, and no wider than there is room.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeAlias

import msgspec

from edge_sdk.core.errors import printable
from edge_sdk.messages.schema import MESSAGES, StateMessage, StatusMessage, TelemetryMessage, check_name
from edge_sdk.tasks.entry import ModelRef, ResultMessage

LARGEST = 1_000_000
"""The largest message that is decoded, in bytes; no device sends a larger one, apart from pictures."""

_LEVELS = {kind.topic.partition("/")[0]: kind for kind in MESSAGES.values() if kind.topic}
_NOT_TOLD = frozenset({"seen", "cmd", "res"})  # `seen` repeats results; the others are not news of a device
_MOST_LABELS = 6  # labels that fit into a line
_LONGEST = 40  # characters of a label
_LATE_S = 10.0  # events of this age or more are shown with it; less may be a difference of clocks


class DeviceAddress(NamedTuple):
    """The levels of PREFIX/SITE/DEVICE/KIND/CAMERA; messages about the device itself have no camera."""

    site: str
    device: str
    kind: str
    camera: str = ""

    @classmethod
    def of(cls, topic: str, prefix: str) -> DeviceAddress | None:
        """Read a topic; return None for a topic on which no device publishes."""
        levels = topic[len(prefix) + 1 :].split("/")
        if not topic.startswith(f"{prefix}/") or len(levels) < 3 or levels[2] not in _LEVELS:
            return None
        if levels[2] == "res":
            levels = levels[:3]  # the requester chooses the levels below
        is_whole = len(levels) == 3 + _LEVELS[levels[2]].is_of_camera and all(levels)
        return cls(*levels) if is_whole else None

    @property
    def is_told(self) -> bool:
        """Whether messages of this kind are shown to people."""
        return self.kind not in _NOT_TOLD


def filters(prefix: str, site: str | None, device: str | None) -> list[str]:
    """Return the topic filters of a fleet, of one of its sites, or of one device."""
    for level in prefix.split("/"):
        check_name("topic prefix", level)
    for what, name in (("site", site), ("device", device)):
        if name is not None:
            check_name(what, name)
    return [f"{prefix}/{site or '+'}/{device or '+'}/#"]


class EventNote(msgspec.Struct, frozen=True):
    """The fields of an event that are shown in a line, and its number; the JSON output has the other fields too."""

    kind: str
    seq: int | None = None
    label: str = ""
    confidence: float | None = None
    at: datetime | None = None
    clock: str = ""


class SnapshotNote(msgspec.Struct, frozen=True):
    """A picture; `size` is its number of bytes."""

    size: int


class Removed(msgspec.Struct, frozen=True):
    """An empty message, which removes the retained message of its topic."""


class Unread(msgspec.Struct, frozen=True):
    """A message that cannot be read; `why` gives the reason in words."""

    why: str


DeviceMessage: TypeAlias = (
    ResultMessage | StatusMessage | StateMessage | TelemetryMessage | EventNote | SnapshotNote | Removed | Unread
)

_DECODERS: dict[str, msgspec.json.Decoder[DeviceMessage]] = {
    level: msgspec.json.Decoder(EventNote if level == "event" else kind.type) for level, kind in _LEVELS.items()
}
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def read(kind: str, payload: bytes) -> DeviceMessage:
    """Decode one message, whose kind is a level of its topic; never raise, whatever its bytes are."""
    if kind == "snapshot":
        return SnapshotNote(len(payload))
    if not payload:
        return Removed()
    if len(payload) > LARGEST:
        return Unread(f"{len(payload)} bytes, more than any device sends")
    try:
        return _DECODERS[kind].decode(payload)
    except RecursionError:
        return Unread("nested too deep")
    except _UNREADABLE as cause:
        return Unread(str(cause))


class _Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    at: datetime
    topic: str
    site: str | None = None
    device: str | None = None
    kind: str | None = None
    camera: str | None = None
    qos: int
    retain: bool
    message: Any = None
    base64: str | None = None


def record_of(
    topic: str, payload: bytes, qos: int, at: datetime, address: DeviceAddress | None, *, retain: bool
) -> bytes:
    """Return one message as one line of JSON, without the line end; a payload that is not JSON is in base64."""
    record = _Record(at=at, topic=topic, qos=qos, retain=retain)
    if address is not None:
        record.site, record.device, record.kind = address.site, address.device, address.kind
        record.camera = address.camera or None
    try:
        record.message = msgspec.json.decode(payload)  # and encoded again, because the payload may have several lines
        return _shown(msgspec.json.encode(record))
    except _UNREADABLE:
        record.message, record.base64 = None, base64.b64encode(payload).decode("ascii")
        return _shown(msgspec.json.encode(record))


def _shown(line: bytes) -> bytes:
    """Escape all characters that a terminal may act on; JSON requires that only below U+0020."""
    text = line.decode()
    if text.isprintable():
        return line
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text).encode()


_WITHOUT_WIDTH = ("Mn", "Me", "Cf")  # marks on the character before, and joiners


def plain(text: str, longest: int = 200) -> str:
    """Remove what a terminal would act on (escapes, line ends, marks of direction), and cut to `longest` characters."""
    return printable(text if len(text) <= longest else f"{text[: longest - 1]}…")


def columns_of(text: str) -> int:
    """Count the columns that a plain text takes in a terminal."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def fitted(text: str, columns: int) -> str:
    """Cut a plain text to a number of columns, with an ellipsis where it was longer."""
    if columns_of(text) <= columns:
        return text
    kept, used = [], 1  # one column is for the ellipsis
    for character in text:
        used += _columns(character)
        if used > columns:
            break
        kept.append(character)
    return "".join(kept) + "…" if columns > 0 else ""


def padded(text: str, columns: int) -> str:
    """Cut or fill a plain text to exactly `columns` columns."""
    shown = fitted(text, columns)
    return shown + " " * (columns - columns_of(shown))


def _columns(character: str) -> int:
    if unicodedata.category(character) in _WITHOUT_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def result_words(message: ResultMessage) -> str:
    """Return a result in words, such as `2 person 91%, dog 64% (beagle 72%)`, a class, or shares of the picture."""
    words, counts, best = list[str](), Counter[str](), dict[str, float]()
    for item in message.items[: message.shown]:
        if item.then:  # what a second model says belongs to this object alone
            more = "".join(f" ({_sure(first.label, first.strength)})" for first in item.then.items[:1])
            words.append(_sure(item.label, item.strength) + more)
        else:
            counts[item.label] += 1
            best[item.label] = max(best.get(item.label, 0.0), item.strength)
    words += ((f"{counts[label]} " if counts[label] > 1 else "") + _sure(label, best[label]) for label in best)
    return _joined(words)


def result_labels(message: ResultMessage) -> tuple[tuple[str, int], ...]:
    """Return the labels of a result and how many there are of each, at most 50; a change of it counts as news."""
    found = sorted(Counter(item.label for item in message.items[: message.news]).items())[:50]
    return tuple((label[:_LONGEST], count) for label, count in found)


def event_words(event: EventNote, now: datetime) -> str:
    """Return an event in words, such as `person appeared 91%`; for a late one also its age: `…, 4 min ago`."""
    sure = "" if event.confidence is None else f" {event.confidence:.0%}"
    words = f"{plain(event.label, _LONGEST)} {plain(event.kind, _LONGEST)}{sure}".strip()
    if event.at is None or event.at.tzinfo is None or event.clock == "unsynchronised":
        return words
    late_s = (now - event.at).total_seconds()
    return f"{words}, {_duration_words(late_s)} ago" if late_s >= _LATE_S else words


class _Line(msgspec.Struct):
    """What a line of JSON says about its own kind."""

    stream: str
    camera: str


def line_words(line: bytes) -> str:
    """Return a line of JSON of `edge-sdk run`, a result or an event, in words for a terminal."""
    about = msgspec.json.decode(line, type=_Line)
    message = read(about.stream, line)
    camera = "" if about.camera == "camera" else f"{plain(about.camera, _LONGEST)}: "
    if isinstance(message, EventNote):
        return f"{camera}event: {event_words(message, datetime.now(timezone.utc))}"
    if isinstance(message, ResultMessage):
        file = f"{plain(message.file)}: " if message.file else ""
        return f"{camera}{file}{result_words(message)} · {message.age_ms:.0f} ms"
    return plain(line.decode())


def model_words(model: ModelRef) -> str:
    """Return the name and version of a model, such as `yolov8n 1795290429`."""
    return f"{plain(model.name, _LONGEST)} {model.version}"


def _duration_words(seconds: float) -> str:
    """Write a duration in the largest unit of which it has at least two."""
    for unit_s, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _sure(label: str, share: float) -> str:
    return f"{plain(label, _LONGEST)} {share:.0%}"


def _joined(parts: Iterable[str]) -> str:
    words = list(parts)
    more = f", {len(words) - _MOST_LABELS} more" if len(words) > _MOST_LABELS else ""
    return ", ".join(words[:_MOST_LABELS]) + more or "nothing"
