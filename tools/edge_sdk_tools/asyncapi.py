"""The AsyncAPI 3 document of what a device publishes and is told, made of its messages, topics and channels.

docs/asyncapi.json is this. The schemas in it are those of the messages, in the words of JSON Schema draft 7, which is
what AsyncAPI's own schema object goes by.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from edge_sdk.messages.commands import Command, ResponseMessage
from edge_sdk.messages.encoder import SeenMessage
from edge_sdk.messages.schema import (
    SCHEMA_VERSION,
    CameraKind,
    EventMessage,
    ResultMessage,
    StateMessage,
    StatusMessage,
    TelemetryMessage,
)
from edge_sdk.messages.topics import Topics
from edge_sdk.publishing.client import ANSWER_EXPIRY_S
from edge_sdk.publishing.settings import MqttSettings

_Json: TypeAlias = dict[str, Any]

_LEVELS = {
    "prefix": "First levels of every topic, `edge/v1` by default; it may have several.",
    "site": "Where the device stands, `default` by default.",
    "device": "The device's name, its host name by default.",
    "camera": "The camera's name.",
    "home_assistant": "First level of Home Assistant's own topics, `homeassistant` by default.",
    "id": "The device's in Home Assistant, made of prefix, site and name.",
}
_DISCOVERY = "{home_assistant}/device/{id}/config"
_REF = "#/components/schemas/{name}"


class _Published(NamedTuple):
    """One kind of message, which a device sends or receives; without a type it is a picture."""

    kind: str
    summary: str
    type: Any
    qos: int = 1
    is_retained: bool = False
    expiry_s: int | None = None
    action: Literal["send", "receive"] = "send"


def asyncapi_document() -> bytes:
    """The document, JSON, indented."""
    published = _published()
    types = [each.type for each in published if each.type is not None]
    payloads, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    by_kind = dict(zip((each.kind for each in published if each.type is not None), payloads, strict=True))
    document: _Json = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "edge-sdk",
            "version": str(SCHEMA_VERSION),
            "description": "What a device publishes over MQTT and can be asked. docs/payload.md explains each field.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {each.kind: _channel(each) for each in published},
        "operations": {each.kind: _operation(each) for each in published},
        "components": {
            "messages": {each.kind: _message(each, by_kind.get(each.kind)) for each in published},
            "schemas": {name: _draft7(schema) for name, schema in sorted(schemas.items())},
        },
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _published() -> list[_Published]:
    settings = MqttSettings(host="broker", port=1883, device="device")
    of_cameras: list[tuple[CameraKind, str, Any]] = [
        ("result", "What one frame shows", ResultMessage),
        ("event", "Something that happened on a camera", EventMessage),
        ("snapshot", "A picture of a camera", None),
    ]
    ways = settings.channels
    return [
        _Published("status", "Whether the device is online, and with which models", StatusMessage, is_retained=True),
        _Published("state", "How the device and its cameras do", StateMessage, is_retained=True),
        _Published("telemetry", "How the machine does", TelemetryMessage, qos=0, expiry_s=settings.expiry_s),
        *(
            _Published(kind, summary, message, qos=ways[kind].qos, expiry_s=ways[kind].expiry_s)
            for kind, summary, message in of_cameras
        ),
        _Published("seen", "What a camera sees at present, in few words", SeenMessage, is_retained=True),
        _Published("discovery", "What Home Assistant is told of the device", dict[str, Any], is_retained=True),
        _Published(
            "command", "What the device is asked to do, where that is allowed", Command, action="receive", qos=0
        ),
        _Published("response", "What came of a command", ResponseMessage, expiry_s=ANSWER_EXPIRY_S),
    ]


def _channel(published: _Published) -> _Json:
    address = _address(published.kind)
    return {
        "address": address,
        "summary": published.summary,
        "parameters": {name: {"description": text} for name, text in _LEVELS.items() if f"{{{name}}}" in address},
        "messages": {published.kind: {"$ref": f"#/components/messages/{published.kind}"}},
    }


def _address(kind: str) -> str:
    """The topic of a kind, with the names of its levels in their places."""
    if kind == "discovery":
        return _DISCOVERY
    topics = Topics("prefix", "site", "device")
    topic = getattr(topics, kind)
    levels = (topic if isinstance(topic, str) else topic("camera")).split("/")
    return "/".join(f"{{{level}}}" if level in _LEVELS else level for level in levels)


def _operation(published: _Published) -> _Json:
    binding: _Json = {"qos": published.qos, "retain": published.is_retained, "bindingVersion": "0.2.0"}
    if published.expiry_s is not None:
        binding["messageExpiryInterval"] = published.expiry_s
    operation: _Json = {
        "action": published.action,
        "summary": published.summary,
        "channel": {"$ref": f"#/channels/{published.kind}"},
        "messages": [{"$ref": f"#/channels/{published.kind}/messages/{published.kind}"}],
        "bindings": {"mqtt": binding},
    }
    if published.kind == "command":
        # MQTT 5's response topic; below the device's own, and that itself where none is named.
        operation["reply"] = {"channel": {"$ref": "#/channels/response"}}
    return operation


def _message(published: _Published, payload: _Json | None) -> _Json:
    is_sent = published.action == "send"
    properties: _Json = {"schema": {"const": str(SCHEMA_VERSION)}, "stream": {"const": published.kind}}
    if published.kind in ("result", "event", "snapshot"):
        properties["seq"] = {"type": "string", "pattern": "^[0-9]+$"}
    required = list(properties)
    if published.kind == "event":
        properties["repeated"] = {"const": "1", "description": "Only where a broker may have had it before."}
    headers: _Json = {
        "type": "object",
        "description": "User properties of MQTT 5; MQTT 3.1.1 has none.",
        "properties": properties,
        "required": required,
    }
    return {
        "name": published.kind,
        "title": published.summary,
        "contentType": "application/json" if payload is not None else "image/jpeg",
        **({"headers": headers} if is_sent else {}),
        "payload": {"type": "string", "format": "binary"} if payload is None else _draft7(payload),
        "bindings": {"mqtt": {"payloadFormatIndicator": 0 if payload is None else 1, "bindingVersion": "0.2.0"}},
    }


def _draft7(schema: Any) -> Any:
    """A schema of draft 2020-12, as msgspec makes it, in the words of draft 7."""
    if isinstance(schema, list):
        return [_draft7(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _draft7(value) for key, value in schema.items() if key != "discriminator"}  # each has its tag
    if "prefixItems" in found:
        found["items"], found["additionalItems"] = found.pop("prefixItems"), False
    if isinstance(found.get("description"), str):
        # Docstrings are indented before Python 3.13, and not from there on.
        found["description"] = inspect.cleandoc(found["description"])
    return found
