"""Reads one TOML file into a typed value; every complaint names the file, the key, what is there and what is expected.

Owns no schema: the caller brings the msgspec type.
"""

from __future__ import annotations

import codecs
import re
import sys
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edge_sdk.errors import EdgeError
from edge_sdk.regular_file import read_regular
from edge_sdk.toml_file.complaint import explain

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
