"""ResponseMessage: the answer to a command, and RefusedError, which becomes one."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edge_sdk.publishing.schemas import schema_document

Code: TypeAlias = Literal[
    "malformed",
    "too_large",
    "unknown_command",
    "not_allowed",
    "retained",
    "response_topic",
    "too_fast",
    "unknown_camera",
    "not_possible",
    "failed",
]
"""Why a command was not carried out."""


class Complaint(msgspec.Struct, frozen=True, kw_only=True):
    """Why a command was not carried out: a word for programs, a line for people."""

    code: Code
    message: str


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Of a snapshot: where it was published, its size in pixels and in bytes, and the frame's number in its source."""

    topic: str
    width: Annotated[int, Meta(ge=1)]
    height: Annotated[int, Meta(ge=1)]
    bytes: Annotated[int, Meta(ge=0)]
    seq: Annotated[int, Meta(ge=0)]


class ResponseMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="stream", tag="response"):
    """What came of one command.

    Attributes:
        device, boot_id, run_id: as in results.
        command: which, where that could be read.
        id: as the command had it.
        ok: whether it was carried out.
        error: why not.
        state: what the retained state says, for `report_state`.
        picture: of a `snapshot`.
    """

    schema: Literal[1] = 1
    device: str
    boot_id: str
    run_id: str
    command: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    ok: bool
    error: Complaint | UnsetType = UNSET
    state: msgspec.Raw | UnsetType = UNSET
    picture: Picture | UnsetType = UNSET


class RefusedError(Exception):
    """A command is not carried out.

    Args:
        code: for programs.
        message: for people.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.complaint = Complaint(code=code, message=message)


def response_schema() -> bytes:
    """The JSON Schema of responses, indented; docs/response.schema.json is this."""
    return schema_document("response", ResponseMessage)
