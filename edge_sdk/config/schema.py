"""The JSON Schema of configuration files, with which editors complete them."""

from __future__ import annotations

import msgspec

from edge_sdk.config.config import Config


def config_schema() -> bytes:
    """The schema, indented; docs/config.schema.json is this."""
    import inspect  # nobody needs it on a device

    schema = msgspec.json.schema(Config)
    for definition in schema["$defs"].values():
        # Docstrings are indented before Python 3.13, and not from there on; their attributes stand with the keys.
        definition["description"] = inspect.cleandoc(definition["description"]).partition("\n")[0]
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Configuration of edge-sdk on a device"
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"
