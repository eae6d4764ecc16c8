"""Password: where a configuration file says that one is, and reading it from there.

Owns the rule that it stands in no configuration file and in no message. Nothing is read before somebody asks, and
everything again when it is asked for again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from msgspec import UNSET

from edge_sdk.config.config import Defaults, MqttConfig
from edge_sdk.errors import ConfigError, UsageError
from edge_sdk.publishing import Secret, read_password

PASSWORD_KEYS = ("password_file", "password_env", "password_credential")
"""Exactly one of them says where a password is."""

_OTHERS = 0o077  # rights of everybody but the file's owner
_FOLDER = "CREDENTIALS_DIRECTORY"


def password_keys(of: str = "") -> tuple[str, ...]:
    """The keys of one password of several in a table: `of` is `key_` for that of a private key."""
    return tuple(f"{of}{key}" for key in PASSWORD_KEYS)


def read_secret(
    table: MqttConfig | Defaults, where: str, what: str, warn: Callable[[str], None], of: str = ""
) -> Secret | None:
    """Read the password that a table names; None where it names none.

    Args:
        table: with one of `PASSWORD_KEYS` at most, as `read_config` gives it.
        where: the table, for people: `mqtt`.
        what: the password, for people.
        warn: takes one line for people: a file that others can read.
        of: which of a table's passwords; see `password_keys`.

    Raises:
        ConfigError: it cannot be read, or is no password.
    """
    try:
        for key in password_keys(of):
            place = getattr(table, key)
            if place is not UNSET:
                return _read(key, place, f"{where}.{key}", what, warn)
    except UsageError as cause:
        raise ConfigError(str(cause)) from None
    return None


def _read(key: str, place: str, where: str, what: str, warn: Callable[[str], None]) -> Secret:
    if key.endswith("_file"):
        return _from_file(Path(place), where, what, warn)
    return _from_variable(place, where, what) if key.endswith("_env") else _from_credential(place, where, what)


def _from_file(path: Path, where: str, what: str, warn: Callable[[str], None]) -> Secret:
    try:
        secret = read_password(path, what)
    except UsageError as cause:
        raise ConfigError(f"{where}: {cause}") from None
    with contextlib.suppress(OSError):  # it was there, and was read
        mode = path.stat().st_mode & 0o777
        if mode & _OTHERS:
            warn(f"warning: {path}: other users can read {what} (mode {mode:04o}); chmod 600 {path}")
    return secret


def _from_variable(name: str, where: str, what: str) -> Secret:
    # The name is not repeated: whoever takes the key for the password's own place wrote the password there.
    text = os.environ.get(name, "")
    if not text:
        raise ConfigError(f"{where}: the environment has no such variable, expected one that holds {what}")
    try:
        text.encode()
    except UnicodeEncodeError:  # not chained: it holds the password
        raise ConfigError(f"{where}: {what} is not UTF-8") from None
    return Secret(text, where)


def _from_credential(name: str, where: str, what: str) -> Secret:
    folder = os.environ.get(_FOLDER)
    if not folder:
        raise ConfigError(
            f"{where}: ${_FOLDER} is not set, expected a start by systemd with LoadCredential= in the unit"
        )
    path = Path(folder) / name
    if not path.is_file():
        raise ConfigError(f"{where}: ${_FOLDER} has no such file, expected a LoadCredential= of that name in the unit")
    return read_password(path, what)
