"""The JSON Schema of report.json, generated from the record's types."""

from __future__ import annotations

import inspect
import math
from typing import Any

import msgspec

from edge_sdk_tools.ledger.ledger import Ledger
from edge_sdk_tools.ledger.sound import BOUNDS

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def report_schema() -> bytes:
    """The JSON Schema of report.json, as docs/report.schema.json holds it."""
    schema = msgspec.json.schema(Ledger)
    for definition in schema["$defs"].values():
        # Docstrings are indented before Python 3.13, and not from there on.
        definition["description"] = inspect.cleandoc(definition["description"])
        for name, field in definition["properties"].items():
            for number in _numbers(field):
                _bound(number, *BOUNDS.get(name, (-math.inf, math.inf)))
    del schema["$defs"]["WorstImage"]["properties"]["picture"]  # in the page only
    schema["$schema"] = _DIALECT
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


def _numbers(field: dict[str, Any]) -> list[dict[str, Any]]:
    """Those alternatives of a field that are numbers."""
    return [one for one in field.get("anyOf", [field]) if one.get("type") in ("number", "integer")]


def _bound(number: dict[str, Any], low: float, high: float) -> None:
    if math.isfinite(low):
        number.setdefault("minimum", low)
    if math.isfinite(high):
        number.setdefault("maximum", high)
