"""Say: how a run speaks to people."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Say: TypeAlias = Callable[[str], None]
"""Takes one line."""


def counted(count: int, noun: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
