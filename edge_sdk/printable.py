"""Text of somebody else's as a terminal, or a journal, may show it."""

from __future__ import annotations

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """A text without what a terminal would act on: escapes, line ends, marks that turn its direction are replaced."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _REPLACEMENT for c in text)
