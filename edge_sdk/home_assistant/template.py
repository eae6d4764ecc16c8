"""Templates: the few lines of Jinja that Home Assistant evaluates for an entity.

Owns the quoting: a camera's name may hold quotes, braces and whatever else a topic may, and is never read as code.
"""

from __future__ import annotations

import msgspec

from edge_sdk.commands import Command


def field(*path: str, missing: str = "none") -> str:
    """A template that gives one value of a JSON message.

    Args:
        path: keys, from the outside.
        missing: an expression for a message that does not have it; Home Assistant takes `none` for unknown.
    """
    *outer, last = map(literal, path)
    steps = "".join(f".get({key}, {{}})" for key in outer)
    return f"{{{{ value_json{steps}.get({last}, {missing}) }}}}"


def ordered_by(command: Command, changing: str) -> str:
    """A template that writes a command with one field from the entity.

    Args:
        command: with any value in that field.
        changing: the field's name.
    """
    fields = msgspec.to_builtins(command)
    pairs = (f"{literal(key)}: {'value' if key == changing else literal(str(fields[key]))}" for key in fields)
    return f"{{{{ {{{', '.join(pairs)}}} | to_json }}}}"


def text(command: Command) -> str:
    """A command as it is written; no template."""
    return msgspec.json.encode(command).decode()


def literal(name: str) -> str:
    """A string of Jinja: as in JSON. Within an expression braces in a string end nothing."""
    return msgspec.json.encode(name).decode()
