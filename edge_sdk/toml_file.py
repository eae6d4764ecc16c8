"""Reads one TOML file into a typed value; every complaint names the file and the key.

Owns no schema: the caller brings the msgspec type. Unknown keys are errors, with the nearest known name.
"""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from edge_sdk.errors import EdgeError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<field>[^`]+)`")
_LOCATION = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")


def read_toml(path: Path, schema: type[T], error: type[EdgeError]) -> T:
    """Read `path` and check it against `schema`.

    Args:
        path: the TOML file.
        schema: a msgspec Struct with `forbid_unknown_fields`.
        error: the family to raise, so that the exit code fits the caller.

    Returns:
        The typed value.

    Raises:
        EdgeError: of type `error`, when the file is missing, not TOML, or does not fit.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as cause:
        raise error(f"{path}: cannot be read: {cause}") from cause
    except tomllib.TOMLDecodeError as cause:
        raise error(f"{path}: not valid TOML: {cause}") from cause
    try:
        return msgspec.convert(document, schema)
    except msgspec.ValidationError as cause:
        raise error(f"{path}: {explain(str(cause), schema)}") from cause


def explain(message: str, schema: type) -> str:
    """Turn msgspec's complaint into `key: expected …, got …`, with the nearest known name for an unknown key."""
    location = _LOCATION.search(message)
    where = location["path"] if location else ""
    what = _LOCATION.sub("", message)
    unknown = _UNKNOWN_FIELD.search(what)
    if unknown:
        field = unknown["field"]
        known = _field_names(_type_at(schema, where))
        near = difflib.get_close_matches(field, known, n=1)
        key = f"{where}.{field}" if where else field
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
        return f"unknown key {key}; {hint}"
    what = what[0].lower() + what[1:]
    return f"{where}: {what}" if where else what


def _type_at(schema: object, where: str) -> object:
    """The type that the dotted path `where` leads to, or `schema` itself where the path leaves the structs."""
    current = schema
    for part in filter(None, where.split(".")):
        fields = {f.encode_name: f.type for f in msgspec.structs.fields(current)} if _is_struct(current) else {}  # type: ignore[arg-type]
        current = next((t for t in _alternatives(fields.get(part)) if _is_struct(t)), current)
    return current


def _alternatives(kind: object) -> tuple[object, ...]:
    return getattr(kind, "__args__", None) or (kind,)


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _field_names(kind: object) -> list[str]:
    return [f.encode_name for f in msgspec.structs.fields(kind)] if _is_struct(kind) else []  # type: ignore[arg-type]
