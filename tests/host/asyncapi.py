"""Messages, looked at with the schemas of an AsyncAPI document."""

from __future__ import annotations

from typing import Any

import jsonschema
from referencing import Registry
from referencing.jsonschema import DRAFT7


class AsyncApi:
    """A document whose schemas are those of JSON Schema draft 7."""

    def __init__(self, document: dict[str, Any]) -> None:
        registry: Registry[Any] = Registry().with_resource("urn:asyncapi", DRAFT7.create_resource(document))
        self._validators = {
            kind: jsonschema.Draft7Validator(
                {"$ref": f"urn:asyncapi#/components/messages/{kind}/payload"}, registry=registry
            )
            for kind in document["components"]["messages"]
        }

    def complaints(self, kind: str, message: object) -> list[str]:
        """What is wrong with a message of that kind."""
        return [error.message for error in self._validators[kind].iter_errors(message)]
