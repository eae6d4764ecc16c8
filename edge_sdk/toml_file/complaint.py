"""Complaints: turns what msgspec says of a document into what its writer needs to know.

Owns the words about what is there; what is expected comes from `expectation`. Unknown keys get the nearest known name,
or the table that they belong to. A table in a list is called by its `name` too, where it has one.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterator

import msgspec

from edge_sdk.toml_file.expectation import (
    WORDS,
    advice_for,
    description_of,
    example_of,
    expectation,
    fields_of,
    is_table,
    literals_of,
    named_by_number,
    one_of,
    options_of,
    required_of,
    shown,
    table_in_list,
    type_inside,
    unit_of,
)

_LOCATION = re.compile(r" - at `(?:key in )?\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
_WITHOUT_QUOTES = re.compile(r"true|false|[+-]?\d+(\.\d+)?")
_NUMBER = re.compile(r"\d+")
_WITH_UNIT = re.compile(r"[+-]?\d+(\.\d+)?\s*[A-Za-z%]+")
_PERCENT = re.compile(r"(\d{1,4}(?:\.\d{1,4})?)\s*%")
_SUSPICIOUS_S = 100  # from here on a number of seconds that is too large may be one of milliseconds
_LONGEST_NAME = 100  # characters: what is longer, or holds other characters than a line may, is no name to call it by

_BOUND = {">=": "{} or more", "<=": "{} or less", ">": "more than {}", "<": "less than {}"}
_LENGTH = {"at least ": "{} or more", ">= ": "{} or more", "at most ": "{} or less", "<= ": "{} or less", "": "{}"}
_COUNTED = {"array": ("entry", "entries"), "object": ("key", "keys"), "str": ("character", "characters")}


class _Absent:
    """Stands where msgspec's path does not say which value it means."""


class _Place(msgspec.Struct, frozen=True):
    """Where a complaint points.

    Attributes:
        entry: the table in a list that it is in, such as `cameras[1] ("gate")`; empty where it is in none with a name.
        where: the dotted key, in that table.
        kind: the type wanted there; None: not known.
        value: what is there.
        schema: of the whole document.
    """

    entry: str
    where: str
    kind: object
    value: object
    schema: object

    def key(self, name: str) -> str:
        """The dotted name of one key in this table."""
        return f"{self.where}.{name}" if self.where else name


def explain(message: str, schema: type, document: object) -> str:
    """Turn msgspec's complaint into the words of a user; one that is not known keeps its own.

    Args:
        message: of a `msgspec.ValidationError`.
        schema: what `document` was checked against.
        document: as TOML gave it.

    Returns:
        One line: the dotted key, what is there, what is expected.
    """
    location = _LOCATION.search(message)
    what = message[: location.start()] if location else message
    place = _find(location["path"] if location else "", schema, document)
    words = _words(place, what)
    return f"{place.entry}: {words}" if place.entry else words


def _words(place: _Place, what: str) -> str:
    for pattern, words in _EXPLANATIONS:
        match = pattern.match(what)
        explained = match and place.kind is not None and words(place, match)
        if explained:
            return explained
    what = what[0].lower() + what[1:]
    return f"{place.where}: {what}" if place.where else what


def _unknown_key(place: _Place, match: re.Match[str]) -> str:
    known = list(dict.fromkeys([*required_of(place.kind), *fields_of(place.kind)]))
    near = difflib.get_close_matches(match[1], known, n=1)
    homes = list(_homes(match[1], place.schema))
    if homes:
        hint = f"belongs {' or '.join(homes)}" + (f"; known here: {', '.join(known)}" if place.entry else "")
    else:
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key {place.key(match[1])}; {hint}"


def _homes(name: str, table: object, path: str = "") -> Iterator[str]:
    """Where a key is known, in words; a key of the document itself must stand above its first table."""
    for key, kind in fields_of(table).items():
        inner = f"{path}.{key}" if path else key
        if key == name and any(map(is_table, options_of(kind))):
            yield f"to a table of its own, [{inner}]"
        elif key == name:
            yield f"under [{path}]" if path else "at the top, above the first [table]"
        yield from _homes(name, kind, inner)
        if table_in_list(kind) is not None and name in fields_of(table_in_list(kind)):
            yield f"under [[{inner}]]"


def _missing_key(place: _Place, match: re.Match[str]) -> str:
    kind = fields_of(place.kind).get(match[1])
    if literals_of(kind):
        expected = f"one of {one_of(literals_of(kind))}"
    elif any(map(is_table, options_of(kind))):
        expected = f"a table [{place.key(match[1])}]"
    elif table_in_list(kind) is not None:
        expected = f"a table [[{place.key(match[1])}]]"
    else:
        expected = description_of(kind) or expectation(kind)
    return f"{place.key(match[1])} is missing, expected {expected}"


def _wrong_type(place: _Place, _match: re.Match[str]) -> str:
    if isinstance(place.value, _Absent):
        return ""
    got = WORDS.get(type(place.value), "a date or a time")
    return f"{place.where}: got {got}, expected {expectation(place.kind)}{_type_hint(place)}"


def _type_hint(place: _Place) -> str:
    value = place.value
    if isinstance(value, str) and {bool, int, float} & set(options_of(place.kind)):
        if _WITHOUT_QUOTES.fullmatch(value):
            return "; leave out the quotes"
        percent = _PERCENT.fullmatch(value)
        if percent and unit_of(place.kind) in ("", "cores"):
            of = " of one core" if unit_of(place.kind) else ""
            return f"; {float(percent[1]) / 100:g} is {value}{of}"
        return "; leave out the unit" if _WITH_UNIT.fullmatch(value) else ""
    if isinstance(value, dict) and table_in_list(place.kind) is not None:
        return f"; write [[{place.where}]]"
    named = named_by_number(place.kind)
    if named and type(value) is int and value >= 0:
        return f'; write "{value}" for {named} {value}'
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return "; put it in quotes" if is_number and str in map(type, literals_of(place.kind)) else ""


def _wrong_choice(place: _Place, _match: re.Match[str]) -> str:
    choices = literals_of(place.kind)
    if isinstance(place.value, _Absent) or not choices:
        return ""
    near = nearest(str(place.value), [str(c) for c in choices])
    advice = advice_for(place.kind, place.value)
    hint = f"; {advice}" if advice else f"; did you mean {near}?" if near else ""
    return f"{place.where}: {shown(place.value)}, expected {one_of(choices)}{hint}"


def _wrong_text(place: _Place, match: re.Match[str]) -> str:
    if isinstance(place.value, _Absent):
        return ""
    expected = description_of(place.kind) or f"a string that matches {match[1]}"
    return f"{place.where}: {shown(place.value)}, expected {expected}"


def _out_of_bounds(place: _Place, match: re.Match[str]) -> str:
    if isinstance(place.value, _Absent):
        return ""
    number, unit = match[2].removesuffix(".0"), unit_of(place.kind)
    counted = f"{number} {unit.removesuffix('s') if number == '1' else unit}".rstrip()
    hint = _other_unit(place.value, unit, match[1])
    return f"{place.where} is {shown(place.value)}, expected {_BOUND[match[1]].format(counted)}{hint}"


def _other_unit(value: object, unit: str, sign: str) -> str:
    """Seconds that look like milliseconds, and the other way round."""
    if not isinstance(value, (int, float)):
        return ""
    if unit == "seconds" and sign.startswith("<") and _SUSPICIOUS_S <= value < math.inf:
        return "; was it milliseconds?"
    return "; was it seconds?" if unit == "milliseconds" and sign.startswith(">") and 0 < value < 1 else ""


def _wrong_length(place: _Place, match: re.Match[str]) -> str:
    if not isinstance(place.value, (str, list, dict)):
        return ""
    one, many = _COUNTED.get(match["kind"], ("item", "items"))
    count = len(place.value)
    expected = _LENGTH[match["sign"]].format(match["count"])
    example = example_of(place.kind)
    return f"{place.where} has {count} {one if count == 1 else many}, expected {expected}" + (
        f", such as {example}" if example else ""
    )


_EXPLANATIONS: tuple[tuple[re.Pattern[str], Callable[[_Place, re.Match[str]], str]], ...] = (
    (re.compile(r"Object contains unknown field `([^`]+)`$"), _unknown_key),
    (re.compile(r"Object missing required field `([^`]+)`$"), _missing_key),
    (re.compile(r"Invalid (?:enum )?value "), _wrong_choice),
    (re.compile(r"Expected `[^`]+`, got `[^`]+`$"), _wrong_type),
    (re.compile(r"Expected `str` matching regex (.+)$"), _wrong_text),
    (re.compile(r"Expected `(?:int|float)` ([<>]=?) (\S+)$"), _out_of_bounds),
    (
        re.compile(
            r"Expected `(?P<kind>\w+)` of (?P<sign>at least |at most |)length (?P<count>\d+(?: to \d+)?)(?:, got \d+)?$"
        ),
        _wrong_length,
    ),
    (re.compile(r"Expected `(?P<kind>\w+)` of length (?P<sign>[<>]= )(?P<count>\d+)$"), _wrong_length),
)
"""What msgspec 0.18 to 0.22 says, and who says it better; an empty answer leaves msgspec's words."""


def _find(path: str, schema: object, document: object) -> _Place:
    """Follow msgspec's path (`.input.size_wh[1]`) through the type and through the document."""
    kind, value, entry, start = schema, document, "", 0
    for step in _STEP.finditer(path):
        key = step["key"] or step["index"]
        kind = type_inside(kind, key)
        value = _value_inside(value, key)
        if step["index"] and isinstance(value, dict):
            place = path[: step.end()].removeprefix(".")
            label = entry_label(place, value.get("name"))
            entry, start = (label, step.end()) if label != place else (entry, start)
    return _Place(entry, path[start:].removeprefix("."), kind, value, schema)


def entry_label(place: str, name: object) -> str:
    """What to call a table in a list: `cameras[1] ("gate")`, or its place where its name is none to call it by."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        return place
    return f'{place} ("{shown(name)[1:-1]}")'


def _value_inside(value: object, key: str) -> object:
    if isinstance(value, dict) and key in value:
        return value[key]
    if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
        return value[int(key)]
    return _Absent()


def nearest(given: str, choices: Collection[str]) -> str:
    """The choice that was probably meant, where none is the one that was given; empty where none is like it."""
    # Another number means another thing: yolov7 is no misspelt yolov8.
    alike = {c.casefold(): c for c in choices if _NUMBER.findall(c) == _NUMBER.findall(given)}
    near = difflib.get_close_matches(given.casefold(), alike, n=1)
    return alike[near[0]] if near else ""
