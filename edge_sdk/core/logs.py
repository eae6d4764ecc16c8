"""Say: how a run speaks to people.

Alarm: one thing that may be wrong, told when it begins and when it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Say: TypeAlias = Callable[[str], None]
"""Takes one line."""


def counted(count: int, noun: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def told(line: str, before: str) -> str:
    """What is wrong, for people; where the line is empty that what was wrong is over, without what was to be done."""
    return f"warning: {line}" if line else f"over: {before.partition('; ')[0]}"


class Alarm:
    """Tells people, and whoever watches from afar.

    Args:
        name: of what may be wrong.
        say: takes one line for people.
        warn: takes the name and the line, empty once it is over.

    Attributes:
        line: what is wrong; empty while nothing is.
    """

    def __init__(self, name: str, say: Callable[[str], None], warn: Callable[[str, str], None]) -> None:
        self.line = ""
        self._name, self._say, self._warn = name, say, warn

    def tell(self, line: str) -> None:
        """Say what is wrong now, or with an empty line that it is over."""
        before, self.line = self.line, line
        self._say(told(line, before))
        self._warn(self._name, line)
