"""JSON on standard output, as `--json` asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec


def echo_json(document: object) -> None:
    """Print a document as one line of JSON.

    Names of files may be no text, which JSON cannot hold: each byte that is part of no character becomes U+FFFD.
    """
    try:
        line = msgspec.json.encode(document, enc_hook=_path)
    except UnicodeEncodeError:
        line = msgspec.json.encode(_text_only(msgspec.to_builtins(document, enc_hook=_path, str_keys=True)))
    click.echo(line)


def _path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def _text_only(value: Any) -> object:
    if isinstance(value, dict):
        return {_text_only(key): _text_only(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_text_only(inner) for inner in value]
    # A byte that is no text is one half of a pair in UTF-16, alone.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value
