"""Text of somebody else's as a terminal, a journal or JSON may show it."""

from __future__ import annotations

LONGEST_LINE = 2000
"""Characters of a line for people; of a longer one the middle is left out."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_HEAD = 1200  # of what is kept: where it is about stands in front, what to do at the end


def printable(text: str) -> str:
    """A text without what a terminal would act on: escapes, line ends, marks that turn its direction are replaced."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _REPLACEMENT for c in text)


def one_line(text: str) -> str:
    """A text as one printable line of at most `LONGEST_LINE` characters."""
    if len(text) > LONGEST_LINE:
        text = f"{text[:_HEAD]}…{text[_HEAD + 1 - LONGEST_LINE :]}"
    return text if text.isprintable() else printable(" ".join(text.splitlines()))
