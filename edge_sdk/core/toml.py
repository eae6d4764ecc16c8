"""Read TOML files and report what is wrong with them in the words of TOML.

`read_toml` reads a file into a msgspec Struct; `read_document` only parses it. `problems` compares a document with its
type (`msgspec.inspect`) and yields every problem with the key, the value and what was expected. msgspec converts the
documents without problems; its own messages appear only for constraints that this module does not know.

A Struct describes its keys completely. Besides types, ranges and patterns this module reads these notes of
`msgspec.Meta`: `description` and `examples` (what to write), and in `extra` the keys `unit` (what a number counts:
"seconds"), `number` (what a number in quotes names: "camera") and `advice` (what to write instead, by wrong value).
A `Path` is a string in the file, relative to the folder of the file.
"""

from __future__ import annotations

import codecs
import difflib
import functools
import math
import operator
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from edge_sdk.core.errors import EdgeError, SettingError
from edge_sdk.core.files import read_regular

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_Notes: TypeAlias = dict[str, Any]

MOST_PROBLEMS = 20
"""The largest number of problems of one file that an error lists."""

ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$(?!\n)"
"""Pattern of a path without line ends; `(?!\n)` is needed because Python's `$` also matches before a final line end."""

_SIZE_LIMIT = 4 << 20  # bytes; a target file has about one kB
_LONGEST_SHOWN = 60  # characters of a value
_LONGEST_NAME = 100  # characters of the name of a table in a list
_SUSPICIOUS_S = 100  # a number of seconds that is too large may, from here on, be one of milliseconds

_URL = re.compile(r"(?P<scheme>://)(?P<login>.*@)?(?P<host>[^/?#]*)(?P<rest>[/?#].+)?", re.DOTALL)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_DIGITS = re.compile(r"\d+")
_WITHOUT_QUOTES = re.compile(r"true|false|[+-]?\d+(\.\d+)?")
_WITH_UNIT = re.compile(r"[+-]?\d+(\.\d+)?\s*[A-Za-z%]+")
_PERCENT = re.compile(r"(\d{1,4}(?:\.\d{1,4})?)\s*%")

_WORDS: dict[type, tuple[str, str]] = {
    str: ("a string", "strings"),
    bool: ("true or false", "true or false values"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    list: ("a list", "lists"),
    dict: ("a table", "tables"),
    type(None): ("null", "null"),
}
"""Names of the types of values. TOML's only other types are dates and times; only JSON has null."""

_TYPES: dict[type[inspect.Type], type] = {
    inspect.StrType: str,
    inspect.CustomType: str,  # a Path, the only one in a file
    inspect.BoolType: bool,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.ListType: list,
    inspect.VarTupleType: list,
    inspect.TupleType: list,
    inspect.DictType: dict,
    inspect.StructType: dict,
}
_BOUNDS = (
    ("ge", operator.ge, "{} or more"),
    ("gt", operator.gt, "more than {}"),
    ("le", operator.le, "{} or less"),
    ("lt", operator.lt, "less than {}"),
)


class Problem(NamedTuple):
    """One thing that is wrong with a document.

    Attributes:
        path: the keys and list indexes that lead to the value; the last one may be missing or unknown.
        text: one line with the dotted key, the value and what was expected.
    """

    path: tuple[str | int, ...]
    text: str


def read_toml(path: Path, schema: type[_Struct], error: type[EdgeError]) -> _Struct:
    """Read a TOML file into a Struct.

    Args:
        path: the TOML file.
        schema: a Struct with `forbid_unknown_fields`, as are those inside it.
        error: class of the error to raise, so that the exit code fits the caller.

    Returns:
        The typed value; each Path in it is relative to the working folder.

    Raises:
        EdgeError: of type `error`, if the file is missing, is not TOML or does not fit; one line per problem.
    """
    document = read_document(path, error)
    try:
        return convert(document, schema, path.parent)
    except msgspec.ValidationError as cause:
        lines = first_lines(problem.text for problem in problems(document, schema))
        raise error(*(f"{path}: {line}" for line in lines)) from cause


def convert(document: object, schema: type[T], folder: Path = Path()) -> T:
    """Convert a document to its type; each Path in it is relative to `folder`.

    Raises:
        msgspec.ValidationError: the document does not fit; `problems` says why.
    """

    def path(_kind: type, value: object) -> Path:
        if not isinstance(value, str) or not re.search(ONE_LINE, value):
            raise ValueError("expected a path")
        return folder / value

    return msgspec.convert(document, schema, dec_hook=path)


def read_document(path: Path, error: type[EdgeError], *, see: str = "") -> dict[str, Any]:
    """Parse a TOML file without checking its keys; ignore a byte order mark.

    Raises:
        EdgeError: of type `error`, if the file is missing or is not TOML.
    """
    text = _read_text(path, error)
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as cause:
        raise error(f"{path}: not valid TOML: {_one_line(cause)}{_syntax_hint(str(cause), text, see)}") from cause
    except RecursionError as cause:
        raise error(f"{path}: not valid TOML: lists in lists without end") from cause
    except ValueError as cause:  # an integer with thousands of digits
        raise error(f"{path}: not valid TOML: {_one_line(cause)}") from cause
    return document


def problems(document: object, schema: type[msgspec.Struct]) -> Iterator[Problem]:
    """Yield every problem of a document, in document order."""
    kind = _kind_of(schema)
    return _problems(kind, document, _Place((), "", "", kind))


def check_fields(struct: msgspec.Struct, schema: type[msgspec.Struct]) -> None:
    """Check the fields of a Struct that a program made; called in its `__post_init__`.

    msgspec checks types and ranges only when it converts a document; this function applies them to any Struct.

    Raises:
        SettingError: names the first field that is wrong, in the words of TOML.
    """
    kind = _kind_of(schema)
    for field in kind.fields:
        place = _Place((), "", "", kind).inside(field.encode_name)
        for problem in _problems(field.type, getattr(struct, field.name), place):
            raise SettingError(problem.text)


class Key(NamedTuple):
    """One key of a table, as its type describes it.

    Attributes:
        type: type of its values: str, bool, int, float or Path; with choices, their type.
        choices: the allowed values; empty if any value is allowed.
        description: text for people; empty if there is none.
        default: value of a missing key; None if the key is required or has no default.
    """

    type: type
    choices: tuple[object, ...]
    description: str
    default: object


def key_of(schema: type[msgspec.Struct], name: str) -> Key:
    """Look up a key of a Struct."""
    field = next(field for field in _kind_of(schema).fields if field.encode_name == name)
    choices = tuple(_choices(field.type))
    option = next(_options(field.type))
    kind = type(choices[0]) if choices else Path if isinstance(option, inspect.CustomType) else _TYPES[type(option)]
    default = None if field.default is msgspec.NODEFAULT else field.default
    return Key(kind, choices, str(_notes(field.type).get("description", "")), default)


def first_lines(lines: Iterable[str]) -> list[str]:
    """Return the first `MOST_PROBLEMS` different lines, and a last line if there are more."""
    found = dict[str, None]()
    for line in lines:
        if len(found) == MOST_PROBLEMS and line not in found:
            return [*found, f"there are more problems than these {MOST_PROBLEMS}; correct these first"]
        found[line] = None
    return list(found)


def entry_label(place: str, name: object) -> str:
    """Name a table in a list: `cameras[1] ("gate")`, or without its name if that does not fit into a line."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        return place
    return f'{place} ("{shown(name)[1:-1]}")'


def nearest(given: str, choices: Collection[str]) -> str:
    """Return the choice that a misspelt value probably meant; empty if none is similar."""
    # Names with different numbers are different things: yolov7 is no misspelt yolov8.
    alike = {c.casefold(): c for c in choices if _DIGITS.findall(c) == _DIGITS.findall(given)}
    near = difflib.get_close_matches(given.casefold(), alike, n=1)
    return alike[near[0]] if near else ""


def one_of(values: Iterable[object]) -> str:
    """Join values in words: `RGB, BGR or GRAY`."""
    *most, last = [str(v) for v in values]
    return f"{', '.join(most)} or {last}" if most else last


def shown(value: object) -> str:
    """Return a value for a message, short and in TOML's form; only the host of a URL, because a path may be a login."""
    value = _URL.sub(_host_only, value) if isinstance(value, str) else value
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    if not isinstance(value, str):
        text = _URL.sub(_host_only, text)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _host_only(url: re.Match[str]) -> str:
    login, rest = "***@" if url["login"] else "", "/…" if url["rest"] else ""
    return f"://{login}{url['host']}{rest}"


# The walk through a document and its type.


class _Place(NamedTuple):
    """The position in a document that the check has reached.

    Attributes:
        entry: label of the innermost named table in a list, such as `cameras[1] ("gate")`; empty without one.
    """

    path: tuple[str | int, ...]
    entry: str
    key: str
    schema: inspect.StructType

    def inside(self, step: str | int) -> _Place:
        if isinstance(step, int):
            key = f"{self.key}[{step}]"
        else:
            name = step if _BARE_KEY.fullmatch(step) and len(step) <= _LONGEST_NAME else shown(step)
            key = f"{self.key}.{name}" if self.key else name
        return self._replace(path=(*self.path, step), key=key)

    def named(self, name: object) -> _Place:
        """Return the place with the table's name in its label, if the table has one."""
        label = entry_label(self.key, name)
        return self if label == self.key else self._replace(entry=label, key="")

    def problem(self, words: str) -> Problem:
        return Problem(self.path, f"{self.entry}: {words}" if self.entry else words)


@functools.cache
def _kind_of(schema: type[msgspec.Struct]) -> inspect.StructType:
    kind = inspect.type_info(schema)
    if not isinstance(kind, inspect.StructType):
        raise TypeError(f"{schema.__name__} is no Struct")
    return kind


def _options(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the allowed types, without notes and without null, which TOML does not have."""
    if isinstance(kind, inspect.Metadata):
        yield from _options(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for option in kind.types:
            yield from _options(option)
    elif not isinstance(kind, inspect.NoneType):
        yield kind


def _notes(kind: inspect.Type) -> _Notes:
    """Return the notes of a type's `Meta`: description, examples, unit, number, advice."""
    if isinstance(kind, inspect.Metadata):
        return {**_notes(kind.type), **(kind.extra_json_schema or {}), **(kind.extra or {})}
    if isinstance(kind, inspect.UnionType):
        return {key: note for option in reversed(kind.types) for key, note in _notes(option).items()}
    return {}


def _struct_of(kind: inspect.Type) -> inspect.StructType | None:
    return next((option for option in _options(kind) if isinstance(option, inspect.StructType)), None)


def _entries_of(kind: inspect.Type) -> inspect.Type | None:
    """Return the type of a list's entries; None if the type is no list or has a fixed length."""
    lists = (option for option in _options(kind) if isinstance(option, inspect.ListType | inspect.VarTupleType))
    return next((each.item_type for each in lists), None)


def _is_table_list(kind: inspect.Type) -> bool:
    entries = _entries_of(kind)
    return entries is not None and _struct_of(entries) is not None


def _choices(kind: inspect.Type) -> list[object]:
    return [value for option in _options(kind) if isinstance(option, inspect.LiteralType) for value in option.values]


def _accepts(kind: inspect.Type, value: object) -> bool:
    """Tell whether a value has the right type; ignore its range."""
    if isinstance(kind, inspect.CustomType):
        return kind.cls is not Path or isinstance(value, str | Path)
    if isinstance(kind, inspect.LiteralType):
        return type(value) in map(type, kind.values)
    wanted = _TYPES.get(type(kind))
    if wanted is float:
        return type(value) in (int, float)
    if wanted is list:
        return isinstance(value, list | tuple)
    if wanted is dict:
        return isinstance(value, dict | msgspec.Struct)
    return wanted is None or type(value) is wanted


def _problems(kind: inspect.Type, value: object, place: _Place) -> Iterator[Problem]:
    if value is None and isinstance(kind, inspect.UnionType) and kind.includes_none:
        return
    if isinstance(value, msgspec.Struct | msgspec.UnsetType):
        return  # it was checked when it was created
    option = next((option for option in _options(kind) if _accepts(option, value)), None)
    if option is None:
        got = _WORDS.get(type(value), ("a date or a time",))[0]
        yield place.problem(f"{place.key}: got {got}, expected {_expected(kind)}{_type_hint(kind, value, place)}")
    elif (check := _CHECKS.get(type(option))) is not None:
        yield from check(option, _notes(kind), value, place)


def _choice_problems(kind: Any, notes: _Notes, value: Any, place: _Place) -> Iterator[Problem]:
    if value in kind.values:
        return
    near = nearest(str(value), [str(choice) for choice in kind.values])
    advice = notes.get("advice", {}).get(value) or (f"did you mean {near}?" if near else "")
    hint = f"; {advice}" if advice else ""
    yield place.problem(f"{place.key}: {shown(value)}, expected {one_of(kind.values)}{hint}")


def _path_problems(kind: Any, notes: _Notes, value: Any, place: _Place) -> Iterator[Problem]:
    if kind.cls is Path and not re.search(ONE_LINE, str(value)):
        yield place.problem(f"{place.key}: {shown(str(value))}, expected {notes.get('description') or 'a path'}")


def _number_problems(kind: Any, notes: _Notes, value: Any, place: _Place) -> Iterator[Problem]:
    unit = notes.get("unit", "")
    for name, is_kept, words in _BOUNDS:
        bound = getattr(kind, name)
        if bound is None or is_kept(value, bound):
            continue
        counted = f"{bound:.12g} {unit.removesuffix('s') if bound == 1 else unit}".rstrip()
        hint = ""
        if unit == "seconds" and name[0] == "l" and _SUSPICIOUS_S <= value < math.inf:
            hint = "; was it milliseconds?"
        elif unit == "milliseconds" and name[0] == "g" and 0 < value < 1:
            hint = "; was it seconds?"
        yield place.problem(f"{place.key} is {shown(value)}, expected {words.format(counted)}{hint}")
        return


def _text_problems(kind: Any, notes: _Notes, value: Any, place: _Place) -> Iterator[Problem]:
    yield from _length_problems(kind, value, place, ("character", "characters"))
    if kind.pattern is not None and not re.search(kind.pattern, value):
        expected = notes.get("description") or f"a string that matches {kind.pattern!r}"
        yield place.problem(f"{place.key}: {shown(value)}, expected {expected}")


def _list_problems(kind: Any, notes: _Notes, value: Any, place: _Place) -> Iterator[Problem]:
    kinds = kind.item_types if isinstance(kind, inspect.TupleType) else repeat(kind.item_type)
    is_sound = True
    for index, (entry, inner) in enumerate(zip(kinds, value, strict=False)):
        inside = place.inside(index)
        if isinstance(inner, dict):
            inside = inside.named(inner.get("name"))
        for problem in _problems(entry, inner, inside):
            is_sound = False
            yield problem
    if is_sound:
        example = f", such as {shown(notes['examples'][0])}" if "examples" in notes else ""
        yield from _length_problems(kind, value, place, ("entry", "entries"), example)


def _dict_problems(kind: Any, _notes: _Notes, value: Any, place: _Place) -> Iterator[Problem]:
    yield from _length_problems(kind, value, place, ("key", "keys"))
    for key, inner in value.items():
        yield from _problems(kind.value_type, inner, place.inside(key))


def _struct_problems(kind: Any, _notes: _Notes, value: Any, place: _Place) -> Iterator[Problem]:
    is_sound = True
    for problem in _key_problems(kind, value, place):
        is_sound = False
        yield problem
    if is_sound:
        try:
            convert(value, kind.cls)
        except msgspec.ValidationError as cause:  # raised by the Struct's `__post_init__`
            yield place.problem(_within(place.key, str(cause.__cause__ or cause), kind))


def _within(key: str, words: str, kind: inspect.StructType) -> str:
    """Join a dotted key and words that may begin with a key of the table."""
    if not key:
        return words
    begins_with_key = re.split(r"\W", words, maxsplit=1)[0] in (field.encode_name for field in kind.fields)
    return f"{key}.{words}" if begins_with_key else f"{key}: {words}"


def _key_problems(kind: inspect.StructType, value: dict[str, object], place: _Place) -> Iterator[Problem]:
    known = {field.encode_name: field.type for field in kind.fields}
    for key, inner in value.items():
        if key in known:
            yield from _problems(known[key], inner, place.inside(key))
        elif key != kind.tag_field:
            yield _unknown_key(kind, key, place)
    for field in kind.fields:
        if field.required and field.encode_name not in value:
            inside = place.inside(field.encode_name)
            yield inside.problem(f"{inside.key} is missing, expected {_missing_words(field.type, inside)}")


def _length_problems(
    kind: Any, value: Sized, place: _Place, names: tuple[str, str], example: str = ""
) -> Iterator[Problem]:
    length = len(value)
    if isinstance(kind, inspect.TupleType):
        expected = "" if length == len(kind.item_types) else str(len(kind.item_types))
    elif kind.min_length is not None and length < kind.min_length:
        expected = f"{kind.min_length} or more"
    else:
        expected = f"{kind.max_length} or less" if kind.max_length is not None and length > kind.max_length else ""
    if expected:
        yield place.problem(f"{place.key} has {length} {names[length != 1]}, expected {expected}{example}")


_CHECKS: dict[type[inspect.Type], Callable[[Any, _Notes, Any, _Place], Iterator[Problem]]] = {
    inspect.LiteralType: _choice_problems,
    inspect.CustomType: _path_problems,
    inspect.IntType: _number_problems,
    inspect.FloatType: _number_problems,
    inspect.StrType: _text_problems,
    inspect.ListType: _list_problems,
    inspect.VarTupleType: _list_problems,
    inspect.TupleType: _list_problems,
    inspect.DictType: _dict_problems,
    inspect.StructType: _struct_problems,
}


# Messages about problems.


def _unknown_key(kind: inspect.StructType, name: str, place: _Place) -> Problem:
    fields = sorted(kind.fields, key=lambda field: not field.required)
    known = [field.encode_name for field in fields]
    near = difflib.get_close_matches(name, known, n=1)
    homes = list(_homes(name, place.schema))
    if homes:
        hint = f"belongs {' or '.join(homes)}" + (f"; known here: {', '.join(known)}" if place.entry else "")
    else:
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
    inside = place.inside(name)
    return inside.problem(f"unknown key {inside.key}; {hint}")


def _homes(name: str, table: inspect.StructType, path: str = "") -> Iterator[str]:
    """Yield descriptions of the places where a key is allowed; a top-level key must stand above the first table."""
    for field in table.fields:
        inner = f"{path}.{field.encode_name}" if path else field.encode_name
        struct, entries = _struct_of(field.type), _entries_of(field.type)
        if field.encode_name == name:
            if struct is not None:
                yield f"to a table of its own, [{inner}]"
            else:
                yield f"under [{path}]" if path else "at the top, above the first [table]"
        if struct is not None:
            yield from _homes(name, struct, inner)
        entry = None if entries is None else _struct_of(entries)
        if entry is not None and name in (each.encode_name for each in entry.fields):
            yield f"under [[{inner}]]"


def _missing_words(kind: inspect.Type, place: _Place) -> str:
    if choices := _choices(kind):
        return f"one of {one_of(choices)}"
    if _struct_of(kind) is not None:
        return f"a table [{place.key}]"
    if _is_table_list(kind):
        return f"a table [[{place.key}]]"
    return str(_notes(kind).get("description") or _expected(kind))


def _expected(kind: inspect.Type) -> str:
    """Describe a value of this type: `a list of 2 whole numbers such as [416, 416]`."""
    words, notes = " or ".join(dict.fromkeys(map(_type_words, _options(kind)))), _notes(kind)
    if "unit" in notes:
        return f"{words} of {notes['unit']}"
    if "examples" in notes:
        return f"{words} such as {shown(notes['examples'][0])}"
    return f"{words}: {notes['description']}" if "description" in notes and not _choices(kind) else words


def _type_words(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.LiteralType):
        return one_of(kind.values)
    if isinstance(kind, inspect.TupleType):
        return f"a list of {len(kind.item_types)} {_plural(kind.item_types[0])}"
    if (entries := _entries_of(kind)) is not None:
        return f"a list of {_plural(entries)}"
    return _WORDS.get(_TYPES.get(type(kind), object), ("a value",))[0]


def _plural(kind: inspect.Type) -> str:
    return " or ".join(
        dict.fromkeys(_WORDS.get(_TYPES.get(type(option), object), ("", "values"))[1] for option in _options(kind))
    )


def _type_hint(kind: inspect.Type, value: object, place: _Place) -> str:
    """Return the next step for a value of a wrong type; empty if it is unclear."""
    types, notes = {_TYPES.get(type(option)) for option in _options(kind)}, _notes(kind)
    if isinstance(value, str) and {bool, int, float} & types:
        if _WITHOUT_QUOTES.fullmatch(value):
            return "; leave out the quotes"
        percent = _PERCENT.fullmatch(value)
        if percent and notes.get("unit", "") in ("", "cores"):
            of = " of one core" if "unit" in notes else ""
            return f"; {float(percent[1]) / 100:g} is {value}{of}"
        return "; leave out the unit" if _WITH_UNIT.fullmatch(value) else ""
    if isinstance(value, dict) and _is_table_list(kind):
        return f"; write [[{place.key}]]"
    if "number" in notes and type(value) is int and value >= 0:
        return f'; write "{value}" for {notes["number"]} {value}'
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return "; put it in quotes" if is_number and str in map(type, _choices(kind)) else ""


# Reading and parsing.

_SYNTAX_AT = re.compile(r"\(at line (?P<line>\d+), column (?P<column>\d+)\)$")
_JSON = re.compile(r"\s*(?:\{|\[\s*\{)")
_OPEN_QUOTE = ("Illegal character '\\n'", "Unterminated string", 'Expected "\'" (at end', "Expected \"'''\" (at end")
_BARE_WORD = re.compile(r"[\w./~-]*[A-Za-z]")


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
    """Return the next step for a syntax error, if known: another format, an open quote, a value without quotes."""
    page = f", see {see}" if see else ""
    if _JSON.match(text):
        return f"; this looks like JSON; it must be TOML{page}"
    if message.startswith(_OPEN_QUOTE):
        return "; is a quote not closed?"
    found = _SYNTAX_AT.search(message)
    if not found:
        return ""
    line = text.split("\n")[int(found["line"]) - 1]
    if message.startswith("Expected '=' after a key"):
        return f"; write key = value{page}"
    if not message.startswith(("Invalid value", "Expected newline")):
        return ""
    value = line.partition("=")[2].strip()
    if value.startswith(("True", "False")):
        return "; true and false are written in small letters"
    entry = line[int(found["column"]) - 1 :] if message.startswith("Invalid value") else ""
    return "; strings need quotes" if _BARE_WORD.match(value) or _BARE_WORD.match(entry) else ""
