"""Write the AsyncAPI 3 document of the messages that a device publishes and receives.

docs/asyncapi.json is this. The schemas in it are those of the messages, in the words of JSON Schema draft 7, which is
what AsyncAPI's own schema object goes by.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeAlias

import msgspec

from edge_sdk.messages.schema import MESSAGES, SCHEMA_VERSION, MessageKind, Topics

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


def asyncapi_document() -> bytes:
    """Return the document as indented JSON."""
    written = {name: kind.type for name, kind in MESSAGES.items() if kind.type is not None}
    payloads, schemas = msgspec.json.schema_components(written.values(), ref_template=_REF)
    by_kind = dict(zip(written, payloads, strict=True))
    document: _Json = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "edge-sdk",
            "version": str(SCHEMA_VERSION),
            "description": "What a device publishes over MQTT and can be asked. docs/payload.md explains each field.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {name: _channel(name) for name in MESSAGES},
        "operations": {name: _operation(name) for name in MESSAGES},
        "components": {
            "messages": {name: _message(name, by_kind.get(name)) for name in MESSAGES},
            "schemas": {name: _draft7(schema) for name, schema in sorted(schemas.items())},
        },
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _channel(name: MessageKind) -> _Json:
    address = _address(name)
    return {
        "address": address,
        "summary": MESSAGES[name].summary,
        "parameters": {level: {"description": text} for level, text in _LEVELS.items() if f"{{{level}}}" in address},
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
    }


def _address(name: MessageKind) -> str:
    """Return the topic of a kind, with the names of its levels in their places."""
    if not MESSAGES[name].topic:
        return _DISCOVERY
    levels = Topics("prefix", "site", "device").of(name, "camera").split("/")
    return "/".join(f"{{{level}}}" if level in _LEVELS else level for level in levels)


def _operation(name: MessageKind) -> _Json:
    kind = MESSAGES[name]
    binding: _Json = {"qos": kind.channel.qos, "retain": kind.is_retained, "bindingVersion": "0.2.0"}
    if not kind.is_retained and not kind.is_received:
        binding["messageExpiryInterval"] = kind.channel.expiry_s
    operation: _Json = {
        "action": "receive" if kind.is_received else "send",
        "summary": kind.summary,
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [{"$ref": f"#/channels/{name}/messages/{name}"}],
        "bindings": {"mqtt": binding},
    }
    if name == "command":
        # MQTT 5's response topic; below the device's own, and that itself where none is named.
        operation["reply"] = {"channel": {"$ref": "#/channels/response"}}
    return operation


def _message(name: MessageKind, payload: _Json | None) -> _Json:
    properties: _Json = {"schema": {"const": str(SCHEMA_VERSION)}, "stream": {"const": name}}
    if name in ("result", "event", "snapshot"):
        properties["seq"] = {"type": "string", "pattern": "^[0-9]+$"}
    required = list(properties)
    if name == "event":
        properties["repeated"] = {"const": "1", "description": "Only where a broker may have had it before."}
    headers: _Json = {
        "type": "object",
        "description": "User properties of MQTT 5; MQTT 3.1.1 has none.",
        "properties": properties,
        "required": required,
    }
    return {
        "name": name,
        "title": MESSAGES[name].summary,
        "contentType": "application/json" if payload is not None else "image/jpeg",
        **({"headers": headers} if not MESSAGES[name].is_received else {}),
        "payload": {"type": "string", "format": "binary"} if payload is None else _draft7(payload),
        "bindings": {"mqtt": {"payloadFormatIndicator": 0 if payload is None else 1, "bindingVersion": "0.2.0"}},
    }


def _draft7(schema: Any) -> Any:
    """Convert a schema of draft 2020-12, as msgspec makes it, to draft 7."""
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
