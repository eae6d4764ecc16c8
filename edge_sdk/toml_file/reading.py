"""Reads one TOML file into a typed value; every complaint names the file, the key, what is there and what is expected.

Owns no schema: the caller brings the msgspec type.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from edge_sdk.errors import EdgeError
from edge_sdk.toml_file.complaint import explain

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

_SYNTAX_AT = re.compile(r"\(at line (?P<line>\d+), column (?P<column>\d+)\)$")
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
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as cause:
        raise error(f"{path}: cannot be read: {cause}") from cause
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as cause:
        raise error(f"{path}: not valid TOML: {cause}{_syntax_hint(str(cause), text)}") from cause
    try:
        return msgspec.convert(document, schema)
    except msgspec.ValidationError as cause:
        raise error(f"{path}: {explain(str(cause), schema, document)}") from cause


def _syntax_hint(message: str, text: str) -> str:
    """What a value without quotes wants, where it looks like one."""
    found = _SYNTAX_AT.search(message)
    if not found or not message.startswith(("Invalid value", "Expected newline")):
        return ""
    line = text.split("\n")[int(found["line"]) - 1]
    value = line.partition("=")[2].strip()
    if value.startswith(("True", "False")):
        return "; true and false are written in small letters"
    entry = line[int(found["column"]) - 1 :] if message.startswith("Invalid value") else ""
    return "; strings need quotes" if _BARE_WORD.match(value) or _BARE_WORD.match(entry) else ""
