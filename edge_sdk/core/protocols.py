"""Protocols of cameras, stages and publishers, and `Event`, which publishers take.

A class of your own that has the methods of a protocol can be used in its place. An event is something that happened on
a camera at one moment; a result says what one frame shows. `events.rules` makes events; a program can make its own.
"""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Annotated, Protocol, TypeAlias, TypeVar

import msgspec

from edge_sdk.core.errors import UsageError, printable
from edge_sdk.core.frame import Frame, Result

Detail: TypeAlias = dict[str, str | int | float | bool]

_Count = Annotated[int, msgspec.Meta(ge=0)]

_NUMBERS = ("class_id", "confidence", "box_xyxy", "frame_wh", "frame_seq")
NAME_LIMIT = 100
"""The largest number of characters of a kind or a label."""

_DETAIL_LIMIT = 8192  # bytes of JSON; an event must fit into the largest message that any broker accepts


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened on a camera; only `kind` is required. Numbers may be numpy's, as those of results are.

    Attributes:
        kind: `appeared`, `disappeared`, or a name of your own: 1 to 100 printable characters.
        camera: name of the camera; a stream publishes its events under its own name.
        at: time of the event, with a time zone; by default now.
        label: label of the class that the event is about.
        class_id: id of that class, as in results.
        confidence: 0-1.
        box_xyxy: left, top, right, bottom in pixels of the frame.
        frame_wh: the frame's width and height in pixels.
        frame_seq: the frame's number.
        detail: further strings, numbers and booleans by name; 8192 bytes of JSON at most.

    Raises:
        UsageError: a value has another type, or is out of range.
    """

    kind: str
    camera: str = "camera"
    at: datetime = msgspec.field(default_factory=lambda: datetime.now(timezone.utc))
    label: str | None = None
    class_id: int | None = None
    confidence: float | None = None
    box_xyxy: tuple[float, float, float, float] | None = None
    frame_wh: tuple[_Count, _Count] | None = None
    frame_seq: _Count | None = None
    detail: Detail | None = None

    def __post_init__(self) -> None:
        for name in _NUMBERS:  # the numbers of a result are numpy's
            value = getattr(self, name)
            if hasattr(value, "tolist"):
                plain = value.tolist()
                msgspec.structs.force_setattr(self, name, tuple(plain) if isinstance(plain, list) else plain)
        try:
            msgspec.convert(msgspec.structs.asdict(self), _Types)
        except msgspec.ValidationError as cause:
            raise UsageError(f"event: {_said(cause)}") from None
        _check_name("kind", self.kind)
        if self.label is not None:
            _check_name("label", self.label)
        if self.at.tzinfo is None:
            raise UsageError("event: at has no time zone; datetime.now(timezone.utc) has one")
        try:
            self.at.astimezone(timezone.utc)
        except OverflowError:
            raise UsageError(f"event: at is {self.at}, expected a year of UTC from 1 to 9999") from None
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise UsageError(f"event: confidence is {self.confidence}, expected 0 to 1")
        if self.box_xyxy is not None and not all(map(math.isfinite, self.box_xyxy)):
            raise UsageError(f"event: box_xyxy is {self.box_xyxy}, expected four finite numbers")
        if self.detail is not None:
            _check_detail(self.detail)


_Types = msgspec.defstruct("_Types", [(field.name, field.type) for field in msgspec.structs.fields(Event)])
"""A struct with the fields of `Event`, to check their types with: msgspec does not check a struct made in Python."""


def _said(cause: msgspec.ValidationError) -> str:
    """Return msgspec's message with the name of the field in front."""
    what, _, where = str(cause).rpartition(" - at `$.")
    return f"{where.rstrip('`')}: {what[:1].lower()}{what[1:]}" if what else str(cause)


def is_name(name: str) -> bool:
    """Tell whether a string may be the kind or the label of an event."""
    return 1 <= len(name) <= NAME_LIMIT and printable(name) == name


def _check_name(what: str, name: str) -> None:
    if not is_name(name):
        raise UsageError(f"event: {what} is {name[:NAME_LIMIT]!r}, expected 1 to {NAME_LIMIT} printable characters")


def _check_detail(detail: Detail) -> None:
    odd = [key for key, value in detail.items() if isinstance(value, float) and not math.isfinite(value)]
    if odd:
        raise UsageError(f"event: detail[{odd[0]!r}] is {detail[odd[0]]}, expected a finite number")
    try:
        size = len(msgspec.json.encode(detail))
    except UnicodeEncodeError as cause:
        raise UsageError(f"event: detail has {cause.object!r}, expected text that can be written as UTF-8") from None
    if size > _DETAIL_LIMIT:
        raise UsageError(f"event: detail has {size} bytes of JSON, expected {_DETAIL_LIMIT} at most")


Value = TypeVar("Value", contravariant=True)
NextValue = TypeVar("NextValue", covariant=True)


class Source(Protocol):
    """A source of frames, such as a camera, that delivers the newest one."""

    @property
    def ended(self) -> bool:
        """Whether no frame will come any more, as at the end of a file. A camera never ends."""

    def latest(self, timeout_s: float) -> Frame | None:
        """Return the newest frame not delivered yet, or None when none came within `timeout_s` seconds."""

    def close(self) -> None:
        """Release all resources; may be called twice."""


class Stage(Protocol[Value, NextValue]):
    """One of the stages from a frame to a result: prepare, session or task."""

    def __call__(self, value: Value, /) -> NextValue:
        """Turn one value into the next."""


class Sink(Protocol):
    """A publisher, or another receiver, of results."""

    def put(self, result: Result, /) -> None:
        """Take one result, without blocking and without raising errors of the network."""


class EventSink(Protocol):
    """A receiver of events; a class that also takes results is a `Sink` too."""

    def put(self, event: Event, /) -> None:
        """Take one event, without blocking and without raising errors of the network."""
