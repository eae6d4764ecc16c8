"""The wire format of results and of a camera's status: what a subscriber reads.

Owns the messages and their JSON Schema, and knows no topics and no broker. docs/payload.md explains every field to
people who subscribe.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

SCHEMA_VERSION: Literal[1] = 1

_Unit = Annotated[float, Meta(ge=0, le=1)]
_Count = Annotated[int, Meta(ge=0)]


class ModelRef(msgspec.Struct, frozen=True, gc=False):
    """What answered: the bundle's name, its version, the SHA-256 of its manifest in hex, and which of its models.

    `variant` is in results, for it may change from one to the next.
    """

    name: str
    version: int
    sha256: str
    variant: str | msgspec.UnsetType = msgspec.UNSET


class FrameSize(msgspec.Struct, frozen=True, gc=False):
    """Size of the original frame in pixels, the space of every box."""

    width: _Count
    height: _Count


class DetectionItem(msgspec.Struct, frozen=True, gc=False):
    """One object; box_xyxy is left, top, right, bottom in pixels of the original frame, to 0.1."""

    label: str
    class_id: int
    confidence: _Unit
    box_xyxy: tuple[float, float, float, float]


class ClassItem(msgspec.Struct, frozen=True, gc=False):
    """One class; class_id -1 is the background of a model that has one."""

    label: str
    class_id: Annotated[int, Meta(ge=-1)]
    confidence: _Unit


class SegmentItem(msgspec.Struct, frozen=True, gc=False):
    """One class; share is the part of the picture that it covers."""

    label: str
    class_id: _Count
    share: _Unit


class _Header(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag_field="task"):
    schema: Literal[1] = SCHEMA_VERSION
    stream: Literal["result"] = "result"
    device: str
    camera: str
    boot_id: str
    run_id: str
    seq: _Count
    captured_at: Annotated[datetime, Meta(tz=True)]
    age_ms: float
    infer_ms: Annotated[float, Meta(ge=0)]
    model: ModelRef
    frame: FrameSize
    not_finite: Literal[True] | msgspec.UnsetType = msgspec.UNSET


class DetectionMessage(_Header, frozen=True, gc=False, kw_only=True, tag="detection"):
    """Objects found in one frame, most confident first."""

    detections: list[DetectionItem]


class ClassificationMessage(_Header, frozen=True, gc=False, kw_only=True, tag="classification"):
    """The most likely classes of one frame, most likely first."""

    classes: list[ClassItem]


class SegmentationMessage(_Header, frozen=True, gc=False, kw_only=True, tag="segmentation"):
    """The classes that one frame shows, the largest first."""

    segments: list[SegmentItem]


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """What runs at present, of all that the camera's stream may fall back to.

    `rung` is 0 for what runs by choice, up to `rungs` - 1; of the frames every `every`-th runs; `reason` is for people.
    While `tuning` is there, other models are measured in turn, and `variant` gives the results between them.
    """

    variant: str
    every: Annotated[int, Meta(ge=1)]
    rung: _Count
    rungs: Annotated[int, Meta(ge=1)]
    reason: str
    tuning: Literal[True] | msgspec.UnsetType = msgspec.UNSET


ResultMessage: TypeAlias = DetectionMessage | ClassificationMessage | SegmentationMessage


class StatusMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a camera's results are published; retained, so that a new subscriber reads it at once."""

    schema: Literal[1]
    stream: Literal["status"]
    status: Literal["online", "offline"]
    reason: Literal["shutdown", "lost"] | msgspec.UnsetType = msgspec.UNSET
    device: str
    camera: str
    boot_id: str
    run_id: str
    model: ModelRef
    versions: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    warnings: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    running: Running | msgspec.UnsetType = msgspec.UNSET


def result_schema() -> bytes:
    """The JSON Schema of every result message, indented; docs/result.schema.json is this."""
    return _schema_document("result", ResultMessage)


def status_schema() -> bytes:
    """The JSON Schema of a status message, indented; docs/status.schema.json is this."""
    return _schema_document("status", StatusMessage)


def _schema_document(stream: str, message: object) -> bytes:
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"edge-sdk {stream}, schema {SCHEMA_VERSION}",
        **msgspec.json.schema(message),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
