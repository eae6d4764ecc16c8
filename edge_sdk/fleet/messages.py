"""Address: whose message a topic says that it is.

Reading: a message's bytes as what they say, or why they say nothing. Nothing here raises.

Record: one message as one line of JSON, whatever it is.

Text from the network, as a terminal may show it: without control characters, and no wider than there is room.

Words: what a message says, in a few of them for people. Plain characters only.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import msgspec

from edge_sdk.core.errors import printable
from edge_sdk.messages.schema import (
    ClassificationMessage,
    DetectionMessage,
    ModelRef,
    ResultMessage,
    SegmentationMessage,
    StateMessage,
    StatusMessage,
    TelemetryMessage,
)
from edge_sdk.messages.topics import check_name

_OF_CAMERAS = frozenset({"result", "event", "snapshot", "seen"})
_OF_DEVICES = frozenset({"status", "state", "telemetry", "cmd", "res"})
_NOT_TOLD = frozenset({"seen", "cmd", "res"})  # a result says more, and the others are no news of a device


class Address(NamedTuple):
    """PREFIX/SITE/DEVICE/KIND or PREFIX/SITE/DEVICE/KIND/CAMERA; camera is empty for what is the device's own."""

    site: str
    device: str
    kind: str
    camera: str = ""

    @classmethod
    def of(cls, topic: str, prefix: str) -> Address | None:
        """Read a topic; None where no device publishes there."""
        if not topic.startswith(f"{prefix}/"):
            return None
        levels = topic[len(prefix) + 1 :].split("/")
        if len(levels) == 3 and levels[2] in _OF_DEVICES and all(levels):
            return cls(*levels)
        if len(levels) == 4 and levels[2] in _OF_CAMERAS and all(levels):
            return cls(*levels)
        if len(levels) > 3 and levels[2] == "res" and all(levels[:3]):
            return cls(*levels[:3])  # what is below is its asker's
        return None

    @property
    def is_told(self) -> bool:
        """Whether people are told what a message of this kind says."""
        return self.kind not in _NOT_TOLD


def filters(prefix: str, site: str | None, device: str | None) -> list[str]:
    """What to subscribe to: a fleet, one site of it, or one device.

    Raises:
        UsageError: a name that cannot be a level of a topic.
    """
    for level in prefix.split("/"):
        check_name("topic prefix", level)
    for what, name in (("site", site), ("device", device)):
        if name is not None:
            check_name(what, name)
    return [f"{prefix}/{site or '+'}/{device or '+'}/#"]


LARGEST = 1_000_000
"""Bytes of a message that is read; no device sends more of what has words."""


class EventNote(msgspec.Struct, frozen=True):
    """What a line says of an event, and its number; what else is in it is for whoever reads the JSON."""

    kind: str
    seq: int | None = None
    label: str = ""
    confidence: float | None = None
    at: datetime | None = None
    clock: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """A picture of so many bytes."""

    size: int


class Removed(msgspec.Struct, frozen=True):
    """Nothing: somebody removed what was retained."""


class Unread(msgspec.Struct, frozen=True):
    """Bytes that say nothing, and why, for people."""

    why: str


Message: TypeAlias = (
    ResultMessage | StatusMessage | StateMessage | TelemetryMessage | EventNote | Snapshot | Removed | Unread
)

_STATUS = msgspec.json.Decoder(StatusMessage)
_STATE = msgspec.json.Decoder(StateMessage)
_TELEMETRY = msgspec.json.Decoder(TelemetryMessage)
_EVENT = msgspec.json.Decoder(EventNote)
_RESULT: msgspec.json.Decoder[DetectionMessage | ClassificationMessage | SegmentationMessage] = msgspec.json.Decoder(
    DetectionMessage | ClassificationMessage | SegmentationMessage
)


def read(kind: str, payload: bytes) -> Message:
    """Read one message.

    Args:
        kind: that its topic names.
        payload: its bytes, from anybody.
    """
    if kind == "snapshot":
        return Snapshot(len(payload))
    if not payload:
        return Removed()
    if len(payload) > LARGEST:
        return Unread(f"{len(payload)} bytes, more than any device sends")
    try:
        return _read(kind, payload)
    except RecursionError:
        return Unread("nested too deep")
    except (msgspec.MsgspecError, ValueError) as cause:
        return Unread(str(cause))


def _read(kind: str, payload: bytes) -> Message:
    if kind == "result":
        return _RESULT.decode(payload)
    if kind == "status":
        return _STATUS.decode(payload)
    if kind == "state":
        return _STATE.decode(payload)
    return _TELEMETRY.decode(payload) if kind == "telemetry" else _EVENT.decode(payload)


_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


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


def record_of(topic: str, payload: bytes, qos: int, at: datetime, address: Address | None, *, retain: bool) -> bytes:
    """One line, without its end.

    Args:
        topic: where it came from.
        payload: its bytes; what is no JSON is written in base64.
        qos: with which it came.
        at: when, with a time zone.
        address: what the topic says; None where it says nothing.
        retain: whether it waited at the broker.
    """
    record = _Record(at=at, topic=topic, qos=qos, retain=retain)
    if address is not None:
        record.site, record.device, record.kind = address.site, address.device, address.kind
        record.camera = address.camera or None
    try:
        record.message = msgspec.json.decode(payload)  # and encoded again: it may go over several lines
        return _shown(msgspec.json.encode(record))
    except _UNREADABLE:
        record.message, record.base64 = None, base64.b64encode(payload).decode("ascii")
        return _shown(msgspec.json.encode(record))


def _shown(line: bytes) -> bytes:
    """The same JSON, with what a terminal may act on escaped: JSON itself only asks for that below U+0020."""
    text = line.decode()
    if text.isprintable():
        return line
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text).encode()


_WITHOUT_WIDTH = ("Mn", "Me")  # marks on the character before


def plain(text: str, longest: int = 200) -> str:
    """A text without anything that a terminal would act on: escapes, line ends, marks that turn its direction.

    Args:
        text: any.
        longest: characters that are kept; more end in an ellipsis.
    """
    return printable(text if len(text) <= longest else f"{text[: longest - 1]}…")


def columns_of(text: str) -> int:
    """How many columns a plain text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def fitted(text: str, columns: int) -> str:
    """A plain text cut to a number of columns, with an ellipsis where it was longer."""
    if columns_of(text) <= columns:
        return text
    kept, used = [], 1  # the ellipsis
    for character in text:
        used += _columns(character)
        if used > columns:
            break
        kept.append(character)
    return "".join(kept) + "…" if columns > 0 else ""


def padded(text: str, columns: int) -> str:
    """A plain text in exactly so many columns."""
    shown = fitted(text, columns)
    return shown + " " * (columns - columns_of(shown))


def _columns(character: str) -> int:
    if unicodedata.category(character) in _WITHOUT_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


_MOST = 6  # labels; a line holds no more
_LONGEST = 40  # characters of one
_NOTHING = "nothing"
_LATE_S = 10.0  # from here on an event is told with its age: less may be the difference of two clocks


def result_words(message: ResultMessage) -> str:
    """What a camera saw: `2 person 91%, bicycle 64%`, a class, or shares of the picture."""
    if isinstance(message, DetectionMessage):
        return _counted((item.label, item.confidence) for item in message.detections)
    if isinstance(message, ClassificationMessage):
        return _listed((item.label, item.confidence) for item in message.classes[:2])
    return _listed((item.label, item.share) for item in message.segments)


def result_labels(message: ResultMessage) -> tuple[tuple[str, int], ...]:
    """What of it is news when it changes: which labels, and how many of each; bounded, for it is remembered."""
    if isinstance(message, DetectionMessage):
        found = sorted(_grouped((item.label, item.confidence) for item in message.detections).items())[:50]
    elif isinstance(message, ClassificationMessage):
        found = [(item.label, 1) for item in message.classes[:1]]
    else:
        found = [(item.label, 1) for item in message.segments[:3]]
    return tuple((label[:_LONGEST], count) for label, count in found)


def event_words(event: EventNote, now: datetime) -> str:
    """`person appeared 91%`, and when, where it waited for its broker: `person appeared 91%, 4 min ago`."""
    sure = "" if event.confidence is None else f" {event.confidence:.0%}"
    words = f"{plain(event.label, _LONGEST)} {plain(event.kind, _LONGEST)}{sure}".strip()
    if event.at is None or event.at.tzinfo is None or event.clock == "unsynchronised":
        return words
    late_s = (now - event.at).total_seconds()
    return f"{words}, {_duration_words(late_s)} ago" if late_s >= _LATE_S else words


def model_words(model: ModelRef) -> str:
    """`yolov8n 1795290429`."""
    return f"{plain(model.name, _LONGEST)} {model.version}"


def _duration_words(seconds: float) -> str:
    """The largest unit of which there are two."""
    for unit_s, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _grouped(items: Iterable[tuple[str, float]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for label, _ in items:
        counts[label] = counts.get(label, 0) + 1
    return counts


def _counted(items: Iterable[tuple[str, float]]) -> str:
    found = list(items)
    best: dict[str, float] = {}
    for label, sure in found:
        best[label] = max(best.get(label, 0.0), sure)
    counts = _grouped(found)
    words = [
        f"{f'{counts[label]} ' if counts[label] > 1 else ''}{plain(label, _LONGEST)} {sure:.0%}"
        for label, sure in best.items()
    ]
    return _joined(words)


def _listed(items: Iterable[tuple[str, float]]) -> str:
    return _joined([f"{plain(label, _LONGEST)} {share:.0%}" for label, share in items])


def _joined(words: list[str]) -> str:
    more = f", {len(words) - _MOST} more" if len(words) > _MOST else ""
    return ", ".join(words[:_MOST]) + more or _NOTHING
