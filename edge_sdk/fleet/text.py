"""Text from the network, as a terminal may show it: without control characters, and no wider than there is room."""

from __future__ import annotations

import unicodedata

from edge_sdk.printable import printable

_WITHOUT_WIDTH = ("Mn", "Me")  # marks on the character before


def plain(text: str, longest: int = 200) -> str:
    """A text without anything that a terminal would act on: escapes, line ends, marks that turn its direction.

    Args:
        text: any.
        longest: characters that are kept; more end in an ellipsis.
    """
    return printable(text if len(text) <= longest else f"{text[: longest - 1]}…")


def columns_of(text: str) -> int:
    """How many columns a plain text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def fitted(text: str, columns: int) -> str:
    """A plain text cut to a number of columns, with an ellipsis where it was longer."""
    if columns_of(text) <= columns:
        return text
    kept, used = [], 1  # the ellipsis
    for character in text:
        used += _columns(character)
        if used > columns:
            break
        kept.append(character)
    return "".join(kept) + "…" if columns > 0 else ""


def padded(text: str, columns: int) -> str:
    """A plain text in exactly so many columns."""
    shown = fitted(text, columns)
    return shown + " " * (columns - columns_of(shown))


def _columns(character: str) -> int:
    if unicodedata.category(character) in _WITHOUT_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
