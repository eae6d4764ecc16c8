"""Lines that the documentation explains are lines that the program says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_GAP = "…"  # in a line, what differs

# Where a line is put together: gaps, punctuation, and what are a user's, the system's, OpenSSL's or the broker's words.
_THEIRS = (
    "/mqtt|the authorities in ca.pem|135|Not authorized|154|Retain not supported|Hostname mismatch|"
    "certificate is not valid for|Too many open files"
)
_JOINTS = rf"{_GAP}|[;:(),]| bytes |{_THEIRS}"


def _texts(tree: ast.AST) -> Iterator[str]:
    """All strings of a module, with gaps for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(p.value) if isinstance(p, ast.Constant) else _GAP for p in node.values)
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.replace("{}", _GAP)


@pytest.fixture(scope="module")
def said() -> str:
    modules = sorted((_ROOT / "edge_sdk").rglob("*.py"))
    return "\n".join(text for path in modules for text in _texts(ast.parse(path.read_text())))


def _lines(name: str) -> list[str]:
    """The first cells of a table that begin with a line in backquotes."""
    rows = [row for row in (_ROOT / "docs" / name).read_text().splitlines() if row.startswith("| `")]
    return [line for row in rows for line in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


@pytest.mark.parametrize("line", [*_lines("troubles.md"), *_lines("security.md")])
def test_it_is_said(said: str, line: str) -> None:
    pieces = [piece.strip() for piece in re.split(_JOINTS, line)]
    assert not [piece for piece in pieces if len(piece) > 3 and piece not in said]


def test_there_are_lines_to_look_up() -> None:
    assert len(_lines("troubles.md")) > 20
    assert len(_lines("security.md")) > 8
