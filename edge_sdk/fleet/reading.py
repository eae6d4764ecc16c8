"""Reading: a message's bytes as what they say, or why they say nothing. Nothing here raises."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

import msgspec

from edge_sdk.publishing import (
    ClassificationMessage,
    DetectionMessage,
    ResultMessage,
    SegmentationMessage,
    StateMessage,
    StatusMessage,
    TelemetryMessage,
)

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
