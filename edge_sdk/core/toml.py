"""Typed TOML files: reading them, and saying what is wrong with them in the words of a user.

Reads one TOML file into a typed value; every complaint names the file, the key, what is there and what is expected.

Owns no schema: the caller brings the msgspec type.

Problems: all that is wrong with a document, where msgspec stops at the first.

Owns the walk through the tables; the words are `complaint`'s.

Expectations: what a type wants, in words.

They are read from the type itself: the values of a `Literal`, and the `description` and `examples` of its `Meta`, which
are therefore written as what a user should give: "letters and digits, at most 100".
`Meta(extra={"unit": "seconds"})` says what a number counts, `{"number": "camera"}` what a string that is a number
names, `Meta(extra={"advice": {"a": "write b"}})` what is meant
by a value that is none of them.

Complaints: turns what msgspec says of a document into what its writer needs to know.

Owns the words about what is there; what is expected comes from `expectation`. Unknown keys get the nearest known name,
or the table that they belong to. A table in a list is called by its `name` too, where it has one.
"""

from __future__ import annotations

import codecs
import copy
import difflib
import math
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from edge_sdk.core.errors import EdgeError
from edge_sdk.core.files import read_regular

_URL = re.compile(r"(?P<scheme>://)(?P<login>.*@)?(?P<host>[^/?#]*)(?P<rest>[/?#].+)?", re.DOTALL)
_LONGEST_SHOWN = 60  # characters of a value

WORDS: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
    type(None): "null",
}
"""What values in a document are called; beside these TOML has dates and times only, and JSON alone has null."""

_PLURAL: dict[object, str] = {str: "strings", bool: "true or false values", int: "whole numbers", float: "numbers"}


def type_inside(kind: object, key: str) -> object:
    """The type of the entry `key`, or None."""
    for option in options_of(kind):
        if key in fields_of(option):
            return fields_of(option)[key]
        origin, entries = get_origin(option), get_args(option)
        if origin is dict:
            return entries[1]
        if origin is tuple and key.isdecimal() and Ellipsis not in entries:
            return entries[int(key)] if int(key) < len(entries) else None
        if origin in (list, tuple):
            return entries[0]
    return None


def options_of(kind: object) -> Iterator[object]:
    """The types that `kind` allows, without `Annotated`, unions, and what TOML does not have: None and `UNSET`."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from options_of(get_args(kind)[0])
    elif origin in (Union, types.UnionType):
        for option in get_args(kind):
            yield from options_of(option)
    elif kind not in (type(None), msgspec.UnsetType):
        yield kind


def _metas(kind: object) -> Iterator[Meta]:
    origin = get_origin(kind)
    if origin is Annotated:
        yield from (m for m in reversed(get_args(kind)[1:]) if isinstance(m, Meta))  # the outermost says most
        yield from _metas(get_args(kind)[0])
    elif origin in (Union, types.UnionType):
        for option in get_args(kind):
            yield from _metas(option)


def description_of(kind: object) -> str:
    """The first description in its `Meta`, or nothing."""
    return next((m.description for m in _metas(kind) if m.description), "")


def example_of(kind: object) -> str:
    """The first example in its `Meta`, as TOML writes it, or nothing."""
    return next((shown(m.examples[0]) for m in _metas(kind) if m.examples), "")


def unit_of(kind: object) -> str:
    """What its `Meta(extra={"unit": "seconds"})` says that it counts, or nothing."""
    return next((str(m.extra["unit"]) for m in _metas(kind) if m.extra and "unit" in m.extra), "")


def named_by_number(kind: object) -> str:
    """What a number in quotes names, by its `Meta(extra={"number": "camera"})`, or nothing."""
    return next((str(m.extra["number"]) for m in _metas(kind) if m.extra and "number" in m.extra), "")


def advice_for(kind: object, value: object) -> str:
    """What its `Meta(extra={"advice": {...}})` has for whoever writes this value, or nothing."""
    advices = (m.extra["advice"] for m in _metas(kind) if m.extra and "advice" in m.extra)
    return next((advice[value] for advice in advices if isinstance(value, (str, int)) and value in advice), "")


def literals_of(kind: object) -> list[object]:
    """The values of its `Literal`, in the order in which they were declared."""
    return [value for option in options_of(kind) if get_origin(option) is Literal for value in get_args(option)]


def is_table(kind: object) -> TypeGuard[type[msgspec.Struct]]:
    """Whether it is a Struct, which is a table in TOML."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def table_in_list(kind: object) -> type[msgspec.Struct] | None:
    """The Struct of which it is a list, [[so]] in TOML; None where it is none."""
    lists = [get_args(option) for option in options_of(kind) if get_origin(option) in (list, tuple)]
    return next((entry for entries in lists for entry in options_of(entries[0]) if is_table(entry)), None)


def entry_of_list(kind: object) -> object | None:
    """The type of the entries of a list of any length; None where it is none."""
    lists = (option for option in options_of(kind) if get_origin(option) in (list, tuple))
    entries = (get_args(option) for option in lists)
    return next((each[0] for each in entries if len(each) == 1 or each[-1] is Ellipsis), None)


def required_of(kind: object) -> list[str]:
    """Keys without which its tables are incomplete."""
    structs = [option for option in options_of(kind) if is_table(option)]
    return [f.encode_name for struct in structs for f in msgspec.structs.fields(struct) if f.required]


def fields_of(kind: object) -> dict[str, object]:
    """Types by key, of the structs among what `kind` allows."""
    structs = [option for option in options_of(kind) if is_table(option)]
    return {f.encode_name: f.type for struct in structs for f in msgspec.structs.fields(struct)}


def expectation(kind: object) -> str:
    """What a value of this type looks like: `a list of 2 whole numbers such as [416, 416]`."""
    words = " or ".join(dict.fromkeys(map(_kind_words, options_of(kind))))
    if unit_of(kind):
        return f"{words} of {unit_of(kind)}"
    example, description = example_of(kind), "" if literals_of(kind) else description_of(kind)
    return words + (f" such as {example}" if example else f": {description}" if description else "")


def _kind_words(kind: object) -> str:
    if get_origin(kind) is Literal:
        return one_of(get_args(kind))
    if get_origin(kind) in (list, tuple):
        entries = get_args(kind)
        count = f"{len(entries)} " if get_origin(kind) is tuple and Ellipsis not in entries else ""
        return f"a list of {count}{_plural(entries[0])}"
    if is_table(kind) or get_origin(kind) is dict or not isinstance(kind, type):
        return "a table"
    return WORDS.get(kind, kind.__name__)


def _plural(kind: object) -> str:
    options = list(options_of(kind))
    if all(get_origin(option) in (list, tuple) for option in options):
        return "lists"
    if all(is_table(option) or get_origin(option) is dict for option in options):
        return "tables"
    return " or ".join(_PLURAL.get(option, "values") for option in options)


def one_of(values: Iterable[object]) -> str:
    """`RGB, BGR or GRAY`."""
    *most, last = [str(v) for v in values]
    return f"{', '.join(most)} or {last}" if most else last


def shown(value: object) -> str:
    """A value in a message: short, as TOML writes it, of a URL no more than its host: a path may be a login, too."""
    value = _URL.sub(_without_secrets, value) if isinstance(value, str) else value
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    if not isinstance(value, str):
        text = _URL.sub(_without_secrets, text)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _without_secrets(url: re.Match[str]) -> str:
    login, rest = "***@" if url["login"] else "", "/…" if url["rest"] else ""
    return f"://{login}{url['host']}{rest}"


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


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

_SIZE_LIMIT = 4 << 20  # bytes; a target's has one kB
_SYNTAX_AT = re.compile(r"\(at line (?P<line>\d+), column (?P<column>\d+)\)$")
_JSON = re.compile(r"\s*(?:\{|\[\s*\{)")
_YAML_LINE = re.compile(r"""\s*(?:- |---|(?:[\w.-]+|"[^"]*"|'[^']*')\s*:(?:\s|$))""")
_OPEN_QUOTE = ("Illegal character '\\n'", "Unterminated string", 'Expected "\'" (at end', "Expected \"'''\" (at end")
# Comments and strings that are whole, and a quote that begins none of them.
_QUOTED = re.compile(
    r'''#[^\n]*|"""(?:\\.|[^\\])*?"""|\'{3}.*?\'{3}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|(?P<open>["'])''', re.DOTALL
)
_BARE_WORD = re.compile(r"[\w./~-]*[A-Za-z]")


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
    document = read_document(path, error)
    try:
        return msgspec.convert(document, schema)
    except msgspec.ValidationError as cause:
        raise error(f"{path}: {explain(str(cause), schema, document)}") from cause


def read_document(path: Path, error: type[EdgeError], *, see: str = "") -> dict[str, Any]:
    """Read `path` as TOML, whatever it holds.

    A mark in front that says UTF-8, as some editors write it, is passed over.

    Args:
        path: the TOML file.
        error: the family to raise.
        see: the page that says how such a file is written, for whoever wrote another format.

    Raises:
        EdgeError: of type `error`, when the file is missing or not TOML.
    """
    text = _read_text(path, error)
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as cause:
        raise error(f"{path}: not valid TOML: {_one_line(cause)}{_syntax_hint(str(cause), text, see)}") from cause
    except RecursionError as cause:
        raise error(f"{path}: not valid TOML: lists in lists without end") from cause
    except ValueError as cause:  # a whole number of thousands of digits
        raise error(f"{path}: not valid TOML: {_one_line(cause)}") from cause
    return document


def _read_text(path: Path, error: type[EdgeError]) -> str:
    try:
        data = read_regular(path, _SIZE_LIMIT)
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except OSError as cause:
        raise error(f"{path}: cannot be read: {cause.strerror}") from cause
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as cause:
        line = cause.object.count(b"\n", 0, cause.start) + 1
        raise error(f"{path}: cannot be read: line {line} is not UTF-8; save it as UTF-8") from cause


def _one_line(cause: Exception) -> str:
    return " ".join(str(cause).split())


def _syntax_hint(message: str, text: str, see: str) -> str:
    """What to do about it, where it is known: another format, a quote that is open, a value without quotes."""
    page = f", see {see}" if see else ""
    if _JSON.match(text):
        return f"; this looks like JSON; it must be TOML{page}"
    if message.startswith(_OPEN_QUOTE):
        line = "" if _SYNTAX_AT.search(message) else _open_quote(text)
        return f"; is a quote{line} not closed?"
    found = _SYNTAX_AT.search(message)
    if not found:
        return ""
    line = text.split("\n")[int(found["line"]) - 1]
    if message.startswith("Expected '=' after a key") and _YAML_LINE.match(line):
        return f"; this looks like YAML; it must be TOML, key = value{page}"
    if not message.startswith(("Invalid value", "Expected newline")):
        return ""
    value = line.partition("=")[2].strip()
    if value.startswith(("True", "False")):
        return "; true and false are written in small letters"
    entry = line[int(found["column"]) - 1 :] if message.startswith("Invalid value") else ""
    return "; strings need quotes" if _BARE_WORD.match(value) or _BARE_WORD.match(entry) else ""


def _open_quote(text: str) -> str:
    """Where the string begins that runs to the end of the file."""
    opened = next((found for found in _QUOTED.finditer(text) if found["open"]), None)
    return "" if opened is None else f" in line {text.count(chr(10), 0, opened.start()) + 1}"


MOST_PROBLEMS = 20
"""Nobody reads more at once, and each takes time to word."""

_PROBLEM_LOCATION = " - at `$"
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]+)`")
_PROBLEM_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+)\]")
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
        what, _, path = complaint.rpartition(_PROBLEM_LOCATION)
        unknown = _UNKNOWN.fullmatch(what)
        steps = [step["key"] or int(step["index"]) for step in _PROBLEM_STEP.finditer(path.rstrip("`"))]
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
    return f"{what}{_PROBLEM_LOCATION}{path}`"


def _moved(complaint: str, path: str) -> str:
    what, _, inner = complaint.rpartition(_PROBLEM_LOCATION)
    return _at(what, path + inner.removesuffix("`")) if what else _at(complaint, path)
