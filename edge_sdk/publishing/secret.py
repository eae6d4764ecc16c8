"""Secret: a password on its way from where it is kept to the one place that sends it.

A secret is in no repr, no message and no log.
"""

from __future__ import annotations

from pathlib import Path

from edge_sdk.errors import UsageError
from edge_sdk.regular_file import read_regular

_PASSWORD_LIMIT = 65535  # bytes, MQTT's own


class Secret:
    """A text that does not show itself by accident.

    Args:
        text: the secret itself.
        place: where it was found, for people.

    Attributes:
        place: as given; empty where nobody knows.
    """

    __slots__ = ("_text", "place")

    def __init__(self, text: str, place: str = "") -> None:
        self._text, self.place = text, place

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def reveal(self) -> str:
        """The text itself, for the one place that sends it."""
        return self._text


def read_password(path: Path, what: str = "the MQTT password") -> Secret:
    """The first line of a file.

    Args:
        path: the file.
        what: what to call its content in an error.

    Raises:
        UsageError: the file cannot be read, or its first line is no password.
    """
    try:
        line = read_regular(path).partition(b"\n")[0].rstrip(b"\r")
    except OSError as cause:
        raise UsageError(f"{path}: {what} cannot be read: {cause.strerror}") from cause
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: {what} is not UTF-8") from None
    if not text or len(line) > _PASSWORD_LIMIT:
        raise UsageError(f"{path}: {what} has {len(line)} bytes, expected 1 to {_PASSWORD_LIMIT} in the first line")
    return Secret(text, str(path))
