"""Messages of a fleet, as `edge-sdk watch` hears them: whose they are, what they say, and that in a few words.

`Address.of` reads a topic, `read` a message's bytes; both take whatever anybody publishes and never raise. `record_of`
writes one message as a line of JSON, whatever it is. `plain`, `fitted` and `padded` bring text from the network into a
form that a terminal may show: without control characters, and no wider than there is room.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import msgspec

from edge_sdk.core.errors import printable
from edge_sdk.messages.schema import (
    MESSAGES,
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

LARGEST = 1_000_000
"""Bytes of a message that is read; no device sends more of what has words."""

_LEVELS = {kind.topic.partition("/")[0]: kind for kind in MESSAGES.values() if kind.topic}
_NOT_TOLD = frozenset({"seen", "cmd", "res"})  # a result says more, and the others are no news of a device
_MOST_LABELS = 6  # a line holds no more
_LONGEST = 40  # characters of a label
_LATE_S = 10.0  # from here on an event is told with its age: less may be the difference of two clocks


class DeviceAddress(NamedTuple):
    """PREFIX/SITE/DEVICE/KIND or PREFIX/SITE/DEVICE/KIND/CAMERA; camera is empty for what is the device's own."""

    site: str
    device: str
    kind: str
    camera: str = ""

    @classmethod
    def of(cls, topic: str, prefix: str) -> DeviceAddress | None:
        """Read a topic; None where no device publishes there."""
        levels = topic[len(prefix) + 1 :].split("/")
        if not topic.startswith(f"{prefix}/") or len(levels) < 3 or levels[2] not in _LEVELS:
            return None
        if levels[2] == "res":
            levels = levels[:3]  # what is below is its requester's
        is_whole = len(levels) == 3 + _LEVELS[levels[2]].is_of_camera and all(levels)
        return cls(*levels) if is_whole else None

    @property
    def is_told(self) -> bool:
        """Whether people are told what a message of this kind says."""
        return self.kind not in _NOT_TOLD


def filters(prefix: str, site: str | None, device: str | None) -> list[str]:
    """Return what to subscribe to: a fleet, one site of it, or one device.

    Raises:
        UsageError: a name that cannot be a level of a topic.
    """
    for level in prefix.split("/"):
        check_name("topic prefix", level)
    for what, name in (("site", site), ("device", device)):
        if name is not None:
            check_name(what, name)
    return [f"{prefix}/{site or '+'}/{device or '+'}/#"]


class EventNote(msgspec.Struct, frozen=True):
    """What a line says of an event, and its number; what else is in it is for whoever reads the JSON."""

    kind: str
    seq: int | None = None
    label: str = ""
    confidence: float | None = None
    at: datetime | None = None
    clock: str = ""


class SnapshotNote(msgspec.Struct, frozen=True):
    """A picture of so many bytes."""

    size: int


class Removed(msgspec.Struct, frozen=True):
    """Nothing: somebody removed what was retained."""


class Unread(msgspec.Struct, frozen=True):
    """Bytes that say nothing, and why, for people."""

    why: str


Message: TypeAlias = (
    ResultMessage | StatusMessage | StateMessage | TelemetryMessage | EventNote | SnapshotNote | Removed | Unread
)

_DECODERS: dict[str, msgspec.json.Decoder[Message]] = {
    level: msgspec.json.Decoder(EventNote if level == "event" else kind.type) for level, kind in _LEVELS.items()
}
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def read(kind: str, payload: bytes) -> Message:
    """Read one message of anybody's, whose kind is the level of its topic that names it."""
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
    """Write one message as one line of JSON, without its end; what is no JSON is written in base64."""
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
    """Escape what a terminal may act on: JSON itself only asks for that below U+0020."""
    text = line.decode()
    if text.isprintable():
        return line
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text).encode()


_WITHOUT_WIDTH = ("Mn", "Me")  # marks on the character before


def plain(text: str, longest: int = 200) -> str:
    """Remove from a text what a terminal would act on: escapes, line ends, marks of direction; cut what is longer."""
    return printable(text if len(text) <= longest else f"{text[: longest - 1]}…")


def columns_of(text: str) -> int:
    """Count the columns that a plain text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def fitted(text: str, columns: int) -> str:
    """Cut a plain text to a number of columns, with an ellipsis where it was longer."""
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
    """Bring a plain text to exactly so many columns."""
    shown = fitted(text, columns)
    return shown + " " * (columns - columns_of(shown))


def _columns(character: str) -> int:
    if unicodedata.category(character) in _WITHOUT_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def result_words(message: ResultMessage) -> str:
    """Say what a camera saw: `2 person 91%, bicycle 64%`, a class, or shares of the picture."""
    if isinstance(message, ClassificationMessage):
        return _joined(_sure(item.label, item.confidence) for item in message.classes[:2])
    if isinstance(message, SegmentationMessage):
        return _joined(_sure(item.label, item.share) for item in message.segments)
    counts, best = Counter(item.label for item in message.detections), dict[str, float]()
    for item in message.detections:
        best[item.label] = max(best.get(item.label, 0.0), item.confidence)
    return _joined((f"{counts[label]} " if counts[label] > 1 else "") + _sure(label, best[label]) for label in best)


def result_labels(message: ResultMessage) -> tuple[tuple[str, int], ...]:
    """Return what of it is news when it changes: which labels, and how many of each; bounded, as it is remembered."""
    if isinstance(message, DetectionMessage):
        found = sorted(Counter(item.label for item in message.detections).items())[:50]
    elif isinstance(message, ClassificationMessage):
        found = [(item.label, 1) for item in message.classes[:1]]
    else:
        found = [(item.label, 1) for item in message.segments[:3]]
    return tuple((label[:_LONGEST], count) for label, count in found)


def event_words(event: EventNote, now: datetime) -> str:
    """Say `person appeared 91%`, and when, where it waited for its broker: `person appeared 91%, 4 min ago`."""
    sure = "" if event.confidence is None else f" {event.confidence:.0%}"
    words = f"{plain(event.label, _LONGEST)} {plain(event.kind, _LONGEST)}{sure}".strip()
    if event.at is None or event.at.tzinfo is None or event.clock == "unsynchronised":
        return words
    late_s = (now - event.at).total_seconds()
    return f"{words}, {_duration_words(late_s)} ago" if late_s >= _LATE_S else words


def model_words(model: ModelRef) -> str:
    """Say `yolov8n 1795290429`."""
    return f"{plain(model.name, _LONGEST)} {model.version}"


def _duration_words(seconds: float) -> str:
    """Count in the largest unit of which there are two."""
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
