"""Read TOML files and report what is wrong with them in the words of TOML.

`read_toml` reads a file into a msgspec Struct; `read_document` only parses it. `problems` compares a document with its
type (`msgspec.inspect`) and yields a line for every problem with the key, the value and what was expected. msgspec
converts the documents without problems; its own messages appear only for constraints that this module does not know.

A Struct describes its keys completely. Besides types, ranges and patterns this module reads these notes of
`msgspec.Meta`: `description` and `examples` (what to write), and in `extra` the keys `unit` (what a number counts),
`also` (other names that people write for the key) and `among` (a function from the key's table to the choices left). A
`Path` is a string in the file, relative to the folder of the file.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import operator
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from edge_sdk.core.errors import EdgeError, SettingError
from edge_sdk.core.files import read_regular
from edge_sdk.core.logs import counted

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_T = TypeVar("_T")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)

ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$(?!\n)"
"""Pattern of a path without line ends; `(?!\n)` is needed because Python's `$` also matches before a final line end."""

_SIZE_LIMIT = 4 << 20  # bytes; a target file has about one kB
_LONGEST_SHOWN = 60  # characters of a value
_SOME = 4  # labels that a message names
_MOST_PROBLEMS = 20  # of one file that an error lists
_LONGEST_NAME = 100  # characters of the name of a table in a list

_URL = re.compile(r"(?P<scheme>://)(?P<login>.*@)?(?P<host>[^/?#]*)(?P<rest>[/?#].+)?", re.DOTALL)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")
_DIGITS = re.compile(r"\d+")

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


def read_toml(path: Path, schema: type[_Struct], error: type[EdgeError]) -> _Struct:
    """Read a TOML file into a Struct with `forbid_unknown_fields`; each Path becomes relative to the working folder.

    What is wrong is raised as `error`, with one line per problem.
    """
    document = read_document(path, error)
    try:
        return convert(document, schema, path.parent)
    except msgspec.ValidationError as cause:
        text = path.read_text("utf-8-sig", "replace")
        lines = (f"{line}{_line_of(line, text)}" for line in problems(document, schema))
        raise error(*(f"{path}: {line}" for line in first_lines(lines))) from cause


def _line_of(problem: str, text: str) -> str:
    """Return ` (line 7)` for a problem of a key that is there: TOML's reader keeps no places."""
    found = re.match(r"(?:(?P<table>[\w.-]+): )?unknown key (?P<key>[\w-]+)|(?P<place>[\w.-]+)", problem)
    place = found["place"] or f"{found['table'] or ''}.{found['key']}".lstrip(".") if found else ""
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header, key = re.match(r"\s*\[([\w.-]+)\]", line), re.match(r"\s*([\w-]+)\s*=", line)
        table = header[1] if header else table
        if place and place == (table if header else f"{table}.{key[1]}".lstrip(".") if key else ""):
            return f" (line {number})"
    return ""


def convert(document: object, schema: type[_T], folder: Path = Path()) -> _T:
    """Convert a document to its type; each Path in it is relative to `folder`.

    Raises:
        msgspec.ValidationError: the document does not fit; `problems` says why.
    """

    def path(_kind: type, value: object) -> Path:
        if not isinstance(value, str) or not re.search(ONE_LINE, value):
            raise ValueError("expected a path")
        return folder / value

    return msgspec.convert(document, schema, dec_hook=path)


def read_document(path: Path, error: type[EdgeError]) -> dict[str, Any]:
    """Parse a TOML file without checking its keys; raise `error` if it is missing or is not TOML."""
    try:
        text = read_regular(path, _SIZE_LIMIT).decode("utf-8-sig")
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except OSError as cause:
        raise error(f"{path}: cannot be read: {cause.strerror}") from cause
    except UnicodeDecodeError as cause:
        line = cause.object.count(b"\n", 0, cause.start) + 1
        raise error(f"{path}: cannot be read: line {line} is not UTF-8; save it as UTF-8") from cause
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as cause:  # a number may have too many digits, a list lie too deep in others
        hint = "a line is key = value, and strings stand in quotes"
        raise error(f"{path}: not valid TOML: {cause}; {hint}") from cause
    return document


def problems(document: object, schema: type[msgspec.Struct]) -> Iterator[str]:
    """Yield a line for every problem of a document, in document order."""
    kind = _kind_of(schema)
    known = {field.encode_name: field for field in kind.fields}
    for line in _problems(kind, document, ""):
        found = re.match(r"(.+: unknown key ([\w-]+); )known keys", line)
        home = _home(found[2], known) if found else ""
        yield f"{found[1]}{home}" if found and home else line


def value_problems(value: object, schema: type[msgspec.Struct], key: str) -> Iterator[str]:
    """Yield a line for every problem of the value of one key of a Struct."""
    return _problems(_field_of(schema, key).type, value, key)


def lenient_tables(document: object, schema: type[msgspec.Struct]) -> tuple[Any, list[str]]:
    """Return a document's tables with their keys as attributes, and the places of what is wrong or missing in them.

    An attribute is the value as the file has it; where that is wrong or missing, the key's default; where there is no
    default, an empty table, an empty list or None. So rules between keys can be checked whatever `problems` says.
    """
    wrong: list[str] = []
    return _lenient_table(_kind_of(schema), document, "", wrong), wrong


def _lenient_table(kind: inspect.StructType, value: object, place: str, wrong: list[str]) -> SimpleNamespace:
    given, table = value if isinstance(value, dict) else {}, SimpleNamespace()
    if given is not value:
        wrong.append(place)
    for field in kind.fields:
        key, inside = field.encode_name, _inside(place, field.encode_name)
        own = _lenient_value(field.type, given[key], inside, wrong) if key in given else _default_of(field)
        if own is None and (key in given or field.required):
            wrong.append(inside)
            own = _default_of(field) or _nothing(field.type)
        setattr(table, field.name, own)
    return table


def _lenient_value(kind: inspect.Type, value: object, place: str, wrong: list[str]) -> object:
    """Return a value, with its tables as `_lenient_table` returns them; None if it is wrong."""
    option = next((option for option in _options(kind) if _accepts(option, value)), None)
    if isinstance(option, inspect.StructType):
        return _lenient_table(option, value, place, wrong)
    if isinstance(option, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
        entry = next(_options(option.item_type))
        if isinstance(entry, inspect.StructType):
            places = entry_labels(place, value)
            return [_lenient_table(entry, inner, inside, wrong) for inner, inside in zip(value, places, strict=True)]
    return None if any(_problems(kind, value, place)) else value


def _default_of(field: inspect.Field) -> object:
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return None if default is msgspec.NODEFAULT else default


def _nothing(kind: inspect.Type) -> object:
    option = next(_options(kind))
    if isinstance(option, inspect.StructType):
        return _lenient_table(option, {}, "", [])
    return [] if isinstance(option, inspect.ListType | inspect.VarTupleType) else None


def check_fields(struct: msgspec.Struct, schema: type[msgspec.Struct]) -> None:
    """Check the fields of a Struct that a program made; called in its `__post_init__`.

    msgspec checks types and ranges only when it converts a document; this function applies them to any Struct.

    Raises:
        SettingError: names the first field that is wrong, in the words of TOML.
    """
    for field in _kind_of(schema).fields:
        for problem in _problems(field.type, getattr(struct, field.name), field.encode_name):
            raise SettingError(problem)


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
    field = _field_of(schema, name)
    option = next(_options(field.type))
    choices = tuple(option.values) if isinstance(option, inspect.LiteralType) else ()
    kind = type(choices[0]) if choices else Path if isinstance(option, inspect.CustomType) else _TYPES[type(option)]
    default = None if field.default is msgspec.NODEFAULT else field.default
    return Key(kind, choices, str(_notes(field.type).get("description", "")), default)


def first_lines(lines: Iterable[str]) -> list[str]:
    """Return the first 20 different lines, and a last line if there are more."""
    found = dict[str, None]()
    for line in lines:
        if len(found) == _MOST_PROBLEMS and line not in found:
            return [*found, f"there are more problems than these {_MOST_PROBLEMS}; correct these first"]
        found[line] = None
    return list(found)


def entry_label(place: str, name: object) -> str:
    """Name a table in a list: `cameras[1] ("gate")`, or without its name if that does not fit into a line."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        return place
    return f'{place} ("{shown(name)[1:-1]}")'


def entry_labels(place: str, entries: Iterable[object]) -> Iterator[str]:
    """Name the entries of a list at `place`, the tables among them as `entry_label` does."""
    for index, entry in enumerate(entries):
        yield entry_label(f"{place}[{index}]", entry.get("name") if isinstance(entry, dict) else None)


def nearest(given: str, choices: Collection[str]) -> str:
    """Return the choice that a misspelt value probably meant; empty if none is similar."""
    # Names with different numbers are different things: yolov7 is no misspelt yolov8.
    alike = {c.casefold(): c for c in choices if _DIGITS.findall(c) == _DIGITS.findall(given)}
    near = difflib.get_close_matches(given.casefold(), alike, n=1)
    return alike[near[0]] if near else ""


def missing_labels(named: Iterable[str], labels: Collection[str], of: str) -> list[str]:
    """Return a line for each named label that is not among `labels`, with the one that was probably meant, or some."""
    near = {label: nearest(label, labels) for label in named if label not in labels}
    first = ", ".join(shown(label) for label in itertools.islice(labels, _SOME))
    some = f"expected {'one of' if len(labels) <= _SOME else f'one of {len(labels)} such as'} {first}"
    return [
        f"{shown(label)} {of}; " + (f"did you mean {shown(like)}?" if like else some) for label, like in near.items()
    ]


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


# The walk through a document and its type. A place is the dotted key of a value, `mqtt.url` or `cameras[1]`; within a
# table of a list that has a name it is that table's label and the key: `cameras[1] ("gate"): url`.


def _inside(place: str, key: str) -> str:
    name = key if _BARE_KEY.fullmatch(key) else shown(key)
    return f"{place}{': ' if place.endswith(')') else '.'}{name}" if place else name


def _header(place: str) -> str:
    """Return the name in a table's header for its place: `pipelines.then` for the table `then` of any pipeline."""
    return re.sub(r"\[\d+\]( \(.*\))?", "", place).replace(": ", ".")


@functools.cache
def _kind_of(schema: type[msgspec.Struct]) -> inspect.StructType:
    kind = inspect.type_info(schema)
    if not isinstance(kind, inspect.StructType):
        raise TypeError(f"{schema.__name__} is no Struct")
    return kind


def _field_of(schema: type[msgspec.Struct], name: str) -> inspect.Field:
    return next(field for field in _kind_of(schema).fields if field.encode_name == name)


def _options(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the allowed types, without notes and without null, which TOML does not have."""
    if isinstance(kind, inspect.Metadata):
        yield from _options(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for option in kind.types:
            yield from _options(option)
    elif not isinstance(kind, inspect.NoneType):
        yield kind


def _notes(kind: inspect.Type) -> dict[str, Any]:
    """Return the notes of a type's `Meta`: description, examples, unit."""
    if isinstance(kind, inspect.Metadata):
        return {**_notes(kind.type), **(kind.extra_json_schema or {}), **(kind.extra or {})}
    if isinstance(kind, inspect.UnionType):
        return {key: note for option in reversed(kind.types) for key, note in _notes(option).items()}
    return {}


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


def _problems(kind: inspect.Type, value: Any, place: str) -> Iterator[str]:
    if value is None and isinstance(kind, inspect.UnionType) and kind.includes_none:
        return
    if isinstance(value, msgspec.Struct | msgspec.UnsetType):
        return  # it was checked when it was created
    option = next((option for option in _options(kind) if _accepts(option, value)), None)
    if option is None:
        got = _WORDS.get(type(value), ("a date or a time",))[0]
        yield f"{place}: got {got}, expected {_expected(kind, place)}"
    else:
        yield from _value_problems(option, _notes(kind), value, place)


def _value_problems(kind: inspect.Type, notes: dict[str, Any], value: Any, place: str) -> Iterator[str]:
    """Yield the problems of a value that has the right type."""
    match kind:
        case inspect.LiteralType(values=values) if value not in values:
            near = nearest(str(value), [str(choice) for choice in values])
            yield f"{place}: {shown(value)}, expected {_one_of(values)}" + (f"; did you mean {near}?" if near else "")
        case inspect.CustomType(cls=cls) if cls is Path and not re.search(ONE_LINE, str(value)):
            yield f"{place}: {shown(str(value))}, expected {notes.get('description', 'a path')}"
        case inspect.IntType() | inspect.FloatType():
            yield from _number_problems(kind, notes.get("unit", ""), value, place)
        case inspect.StrType(pattern=pattern):
            yield from _length_problems(kind, len(value), place, "character")
            if pattern is not None and not re.search(pattern, value):
                expected = notes.get("description", f"a string that matches {pattern!r}")
                yield f"{place}: {shown(value)}, expected {expected}"
        case inspect.ListType() | inspect.VarTupleType() | inspect.TupleType():
            yield from _list_problems(kind, value, place)
        case inspect.DictType():
            yield from _length_problems(kind, len(value), place, "key")
            for key, inner in value.items():
                yield from _problems(kind.value_type, inner, _inside(place, key))
        case inspect.StructType():
            yield from _struct_problems(kind, value, place)


def _number_problems(kind: inspect.IntType | inspect.FloatType, unit: str, value: float, place: str) -> Iterator[str]:
    for name, is_kept, words in _BOUNDS:
        bound = getattr(kind, name)
        if bound is not None and not is_kept(value, bound):
            expected = f"{bound:.12g} {unit.removesuffix('s') if bound == 1 else unit}".rstrip()
            yield f"{place} is {shown(value)}, expected {words.format(expected)}"
            return


def _list_problems(
    kind: inspect.ListType | inspect.VarTupleType | inspect.TupleType, value: list[Any], place: str
) -> Iterator[str]:
    is_sound = True
    for entry, inner, inside in zip(_entries_of(kind), value, entry_labels(place, value), strict=False):
        for problem in _problems(entry, inner, inside):
            is_sound = False
            yield problem
    if is_sound:
        yield from _length_problems(kind, len(value), place, "item")


def _struct_problems(kind: inspect.StructType, value: dict[str, object], place: str) -> Iterator[str]:
    is_sound = True
    for problem in _key_problems(kind, value, place):
        is_sound = False
        yield problem
    if is_sound:
        try:
            convert(value, kind.cls)
        except msgspec.ValidationError as cause:  # raised by the Struct's `__post_init__`
            yield f"{place}: {cause.__cause__ or cause}" if place else str(cause.__cause__ or cause)


def _key_problems(kind: inspect.StructType, value: dict[str, object], place: str) -> Iterator[str]:
    known = {field.encode_name: field for field in sorted(kind.fields, key=lambda field: not field.required)}
    for key, inner in value.items():
        if key in known:
            yield from _problems(_type_in(known[key], value, inner), inner, _inside(place, key))
        elif key != kind.tag_field:
            yield f"{place + ': ' if place else ''}unknown key {_inside('', key)}; {_hint(key, known, place)}"
    for field in kind.fields:
        if field.required and field.encode_name not in value:
            inside = _inside(place, field.encode_name)
            kind_in = _type_in(field, value, None)
            expected = _notes(kind_in).get("description") or _expected(kind_in, inside)
            yield f"{inside} is missing, expected {expected}"


def _home(key: str, known: dict[str, inspect.Field], place: str = "") -> str:
    """Return where a key belongs in a table whose own keys are `known`; an empty string if it is none of them."""
    outer = _header(place)
    homes = list[str]()
    for name, field in known.items():
        inner = f"{outer}.{name}" if outer else name
        for option in _options(field.type):
            item = next(_options(option.item_type)) if isinstance(option, inspect.VarTupleType) else option
            head = f"[{inner}]" if item is option else f"[[{inner}]]"
            if isinstance(item, inspect.StructType) and name == key:
                return f"it is a table of its own, {head}"
            if isinstance(item, inspect.StructType) and key in (inside.encode_name for inside in item.fields):
                homes.append(head)
    if key in known:
        return "it belongs above the first [table]"
    return f"it belongs below {' or '.join(homes)}" if homes else ""


def _hint(key: str, known: dict[str, inspect.Field], place: str) -> str:
    """Return where an unknown key of a table belongs, which key it probably stands for, or which there are."""
    also = {word: name for name, field in known.items() for word in _notes(field.type).get("also", ())}
    if key not in also and (home := _home(key, known, place)):
        return home
    near = also.get(key) or nearest(key, known)
    return f"did you mean {near}?" if near else f"known keys: {', '.join(known)}"


def _type_in(field: inspect.Field, table: dict[str, object], value: object) -> inspect.Type:
    """Return the type of a field; for an unknown value, one with the choices that the table's other keys leave."""
    among = _notes(field.type).get("among")
    is_known = any(isinstance(kind, inspect.LiteralType) and value in kind.values for kind in _options(field.type))
    return field.type if among is None or is_known else inspect.LiteralType(tuple(sorted(among(table))))


def _length_problems(kind: Any, length: int, place: str, noun: str) -> Iterator[str]:
    if isinstance(kind, inspect.TupleType):
        expected = "" if length == len(kind.item_types) else str(len(kind.item_types))
    elif kind.min_length is not None and length < kind.min_length:
        expected = f"{kind.min_length} or more"
    else:
        expected = f"{kind.max_length} or less" if kind.max_length is not None and length > kind.max_length else ""
    if expected:
        yield f"{place} has {counted(length, noun)}, expected {expected}"


# Messages about problems.


def _expected(kind: inspect.Type, place: str) -> str:
    """Describe a value of this type: `a list of 2 whole numbers such as [416, 416]`."""
    words, notes = " or ".join(dict.fromkeys(_type_words(option, place) for option in _options(kind))), _notes(kind)
    if "unit" in notes:
        return f"{words} of {notes['unit']}"
    if "examples" in notes:
        return f"{words} such as {shown(notes['examples'][0])}"
    is_choice = any(isinstance(option, inspect.LiteralType) for option in _options(kind))
    return f"{words}: {notes['description']}" if "description" in notes and not is_choice else words


def _type_words(kind: inspect.Type, place: str) -> str:
    if isinstance(kind, inspect.LiteralType):
        return _one_of(kind.values)
    if isinstance(kind, inspect.TupleType | inspect.ListType | inspect.VarTupleType):
        entry = next(_entries_of(kind))
        if any(isinstance(option, inspect.StructType) for option in _options(entry)):
            return f"tables [[{_header(place)}]]"
        names = (_WORDS.get(_TYPES.get(type(option), object), ("", "values"))[1] for option in _options(entry))
        count = f"{len(kind.item_types)} " if isinstance(kind, inspect.TupleType) else ""
        return f"a list of {count}{' or '.join(dict.fromkeys(names))}"
    if isinstance(kind, inspect.StructType) and not place.endswith("]"):
        return f"a table [{_header(place)}]"
    return _WORDS.get(_TYPES.get(type(kind), object), ("a value",))[0]


def _entries_of(kind: inspect.ListType | inspect.VarTupleType | inspect.TupleType) -> Iterator[inspect.Type]:
    return iter(kind.item_types) if isinstance(kind, inspect.TupleType) else repeat(kind.item_type)


def _one_of(values: Iterable[object]) -> str:
    """Join values in words: `'RGB', 'BGR' or 'GRAY'`."""
    *most, last = map(shown, values)
    return f"{', '.join(most)} or {last}" if most else last
