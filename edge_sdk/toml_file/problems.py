"""Problems: all that is wrong with a document, where msgspec stops at the first.

Owns the walk through the tables; the words are `complaint`'s.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from edge_sdk.toml_file.complaint import explain
from edge_sdk.toml_file.expectation import entry_of_list, fields_of, is_table, options_of, shown

MOST_PROBLEMS = 20
"""Nobody reads more at once, and each takes time to word."""

_LOCATION = " - at `$"
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]+)`")
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+)\]")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def problems(document: object, schema: type[msgspec.Struct]) -> Iterator[str]:
    """Say what is wrong with each key of a document; the next problem is looked for when it is asked for.

    Args:
        document: as TOML gave it.
        schema: a Struct with `forbid_unknown_fields`, as are those inside it.

    Yields:
        One line a problem, as `explain` words them, in the order of the document; nothing where it fits.
    """
    return (explain(complaint, schema, document) for complaint in _complaints(schema, document, ""))


def first_problems(lines: Iterable[str]) -> list[str]:
    """The first `MOST_PROBLEMS` different lines, and where there are more a line that says so."""
    found = dict[str, None]()
    for line in lines:
        if len(found) == MOST_PROBLEMS and line not in found:
            return [*found, f"there are more problems than these {MOST_PROBLEMS}; correct these first"]
        found[line] = None
    return list(found)


def sound_part(document: dict[str, object], schema: type[_Struct]) -> tuple[_Struct | None, set[str]]:
    """What is left of a document without the values that are wrong for themselves.

    Args:
        document: as TOML gave it.
        schema: as of `problems`.

    Returns:
        It, None where too little is left, and the names of the keys that were left out.
    """
    rest, left_out = copy.deepcopy(document), set[str]()
    for complaint in reversed([*_complaints(schema, document, "")]):  # from the end: places before it stay
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


def _complaints(kind: object, value: object, path: str) -> Iterator[str]:
    """In msgspec's words and with its paths."""
    table = next(filter(is_table, options_of(kind)), None)
    entry = entry_of_list(kind)
    is_wrong_inside = False
    for complaint in _complaints_inside(table, entry, value, path):
        is_wrong_inside = True
        yield complaint
    if is_wrong_inside:
        return
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as cause:
        yield _moved(str(cause), path)


def _complaints_inside(
    table: type[msgspec.Struct] | None, entry: object | None, value: object, path: str
) -> Iterator[str]:
    if table is not None and isinstance(value, dict):
        yield from _of_table(table, value, path)
    elif entry is not None and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _complaints(entry, inner, f"{path}[{index}]")


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
