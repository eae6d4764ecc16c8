"""Links between the pages of the documentation lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_PAGES = [
    _ROOT / "README.md",
    *sorted((_ROOT / "docs").rglob("*.md")),
    *sorted((_ROOT / "examples").rglob("*.md")),
]
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)")


def _prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.+?) *$", _prose(page), re.M)
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in shown}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for path, anchor in _LINK.findall(_prose(page)):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert broken == []


def test_the_index_names_every_page() -> None:
    index = (_ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in (_ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"({name})" not in index} == set()
