"""Expectations: what a type wants, in words.

They are read from the type itself: the values of a `Literal`, and the `description` and `examples` of its `Meta`, which
are therefore written as what a user should give: "letters and digits, at most 100".
`Meta(extra={"unit": "seconds"})` says what a number counts, `{"number": "camera"}` what a string that is a number
names, `Meta(extra={"advice": {"a": "write b"}})` what is meant
by a value that is none of them.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, TypeGuard, Union, get_args, get_origin

import msgspec
from msgspec import Meta

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
