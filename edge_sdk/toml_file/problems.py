"""Problems: all that is wrong with a document, where msgspec stops at the first.

Owns the walk through the tables; the words are `complaint`'s.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from edge_sdk.toml_file.complaint import explain
from edge_sdk.toml_file.expectation import entry_of_list, fields_of, is_table, options_of, shown

_LOCATION = " - at `$"
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]+)`")
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+)\]")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)
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


def sound_part(document: dict[str, object], schema: type[_Struct]) -> tuple[_Struct | None, set[str]]:
    """What is left of a document without the values that are wrong for themselves.

    Args:
        document: as TOML gave it.
        schema: as of `problems`.

    Returns:
        It, None where too little is left, and the names of the keys that were left out.
    """
    rest, left_out = copy.deepcopy(document), set[str]()
    for complaint in reversed(_complaints(schema, document, "")):  # from the end: places before it stay
        what, _, path = complaint.rpartition(_LOCATION)
        unknown = _UNKNOWN.fullmatch(what)
        steps = [step["key"] or int(step["index"]) for step in _STEP.finditer(path.rstrip("`"))]
        steps += [unknown[1]] if unknown else []
        left_out.update([step for step in steps if isinstance(step, str)][-1:])
        if not steps or not _leave_out(rest, steps):
            return None, left_out
    try:
        return msgspec.convert(rest, schema), left_out
    except msgspec.ValidationError:
        return None, left_out


def _leave_out(document: object, steps: list[str | int]) -> bool:
    """Whether what is there could be removed; of tables in a list none is, so that they keep their numbers."""
    *way, last = steps
    place: Any = document
    try:
        for step in way:
            place = place[step]
        if isinstance(place, list) and any(isinstance(entry, dict) for entry in place):
            return False
        del place[last]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _complaints(kind: object, value: object, path: str) -> list[str]:
    """In msgspec's words and with its paths."""
    found: list[str] = []
    table = next(filter(is_table, options_of(kind)), None)
    entry = entry_of_list(kind)
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
