"""A file has one noun, and then it stays short."""

from __future__ import annotations

from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).parents[2]
_MOST = 299


@pytest.mark.parametrize("folder", ["edge_sdk", "tools", "tests", "benchmarks"])
def test_every_file_has_fewer_than_300_lines(folder: str) -> None:
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in (_CHECKOUT / folder).rglob("*.py")}
    assert lengths
    assert {str(p.relative_to(_CHECKOUT)): n for p, n in lengths.items() if n > _MOST} == {}
