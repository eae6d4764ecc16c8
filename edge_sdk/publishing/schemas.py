"""The JSON Schemas of what a device publishes, made of its messages; docs/ holds them for people who subscribe."""

from __future__ import annotations

import msgspec

from edge_sdk.publishing.payload import (
    SCHEMA_VERSION,
    EventMessage,
    ResultMessage,
    StateMessage,
    StatusMessage,
    TelemetryMessage,
)
from edge_sdk.publishing.seen import SeenMessage


def result_schema() -> bytes:
    """The JSON Schema of every result message, indented; docs/result.schema.json is this."""
    return schema_document("result", ResultMessage)


def status_schema() -> bytes:
    """The JSON Schema of a status message, indented; docs/status.schema.json is this."""
    return schema_document("status", StatusMessage)


def state_schema() -> bytes:
    """The JSON Schema of a state message, indented; docs/state.schema.json is this."""
    return schema_document("state", StateMessage)


def telemetry_schema() -> bytes:
    """The JSON Schema of a telemetry message, indented; docs/telemetry.schema.json is this."""
    return schema_document("telemetry", TelemetryMessage)


def event_schema() -> bytes:
    """The JSON Schema of an event message, indented; docs/event.schema.json is this."""
    return schema_document("event", EventMessage)


def seen_schema() -> bytes:
    """The JSON Schema of what is seen, indented; docs/seen.schema.json is this."""
    return schema_document("seen", SeenMessage)


def schema_document(stream: str, message: object) -> bytes:
    """The JSON Schema of the messages of one stream, indented."""
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"edge-sdk {stream}, schema {SCHEMA_VERSION}",
        **msgspec.json.schema(message),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
