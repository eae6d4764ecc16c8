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

_MESSAGES: dict[str, object] = {
    "result": ResultMessage,
    "status": StatusMessage,
    "state": StateMessage,
    "telemetry": TelemetryMessage,
    "event": EventMessage,
    "seen": SeenMessage,
}


def message_schema(stream: str) -> bytes:
    """The JSON Schema of the messages of one stream that a device publishes, indented.

    docs/STREAM.schema.json is this.
    """
    return schema_document(stream, _MESSAGES[stream])


def schema_document(stream: str, message: object) -> bytes:
    """The JSON Schema of the messages of one stream, indented."""
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"edge-sdk {stream}, schema {SCHEMA_VERSION}",
        **msgspec.json.schema(message),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
