"""Problems: all that is wrong with a document, where msgspec stops at the first.

Owns the walk through the tables; the words are `complaint`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from edge_sdk.toml_file.complaint import explain
from edge_sdk.toml_file.expectation import fields_of, is_table, options_of, shown, table_in_list

_LOCATION = " - at `$"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def problems(document: object, schema: type[msgspec.Struct]) -> list[str]:
    """Say what is wrong with each key of a document.

    Args:
        document: as TOML gave it.
        schema: a Struct with `forbid_unknown_fields`, as are those inside it.

    Returns:
        One line a problem, as `explain` words them, in the order of the document; nothing where it fits.
    """
    return [explain(complaint, schema, document) for complaint in _complaints(schema, document, "")]


def _complaints(kind: object, value: object, path: str) -> list[str]:
    """In msgspec's words and with its paths."""
    found: list[str] = []
    table = next(filter(is_table, options_of(kind)), None)
    entry = table_in_list(kind)
    if table is not None and isinstance(value, dict):
        found = list(_of_table(table, value, path))
    elif entry is not None and isinstance(value, list):
        found = [c for i, inner in enumerate(value) for c in _complaints(entry, inner, f"{path}[{i}]")]
    if found:
        return found
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as cause:
        return [_moved(str(cause), path)]
    return []


def _of_table(table: type[msgspec.Struct], value: dict[str, object], path: str) -> Iterator[str]:
    known = fields_of(table)
    for key, inner in value.items():
        if key in known:
            yield from _complaints(known[key], inner, f"{path}.{key}")
        else:
            name = key if _BARE_KEY.fullmatch(key) else shown(key).replace("`", "'")
            yield _at(f"Object contains unknown field `{name}`", path)
    for field in msgspec.structs.fields(table):
        if field.required and field.encode_name not in value:
            yield _at(f"Object missing required field `{field.encode_name}`", path)


def _at(what: str, path: str) -> str:
    return f"{what}{_LOCATION}{path}`"


def _moved(complaint: str, path: str) -> str:
    what, _, inner = complaint.rpartition(_LOCATION)
    return _at(what, path + inner.removesuffix("`")) if what else _at(complaint, path)
