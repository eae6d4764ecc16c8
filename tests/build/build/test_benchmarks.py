"""Every benchmark still finds what it imports and names its options, and the page: nobody runs all at each change."""

import importlib
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import benchmarks
from benchmarks.figures import hot_path
from benchmarks.figures.figure import Figure

_ROOT = Path(benchmarks.__path__[0])
_NAMES = sorted(
    ".".join(path.relative_to(_ROOT).with_suffix("").parts)
    for path in _ROOT.glob("*/*.py")
    if not path.stem.startswith("__")
    and path.stem not in ("ultralytics_stream", "openvino_nncf")  # another environment's
)


@pytest.mark.long
def test_every_benchmark_can_be_imported_and_shows_its_options() -> None:
    for name in (*_NAMES, "__main__"):
        main = getattr(importlib.import_module(f"benchmarks.{name}"), "main", None)
        if isinstance(main, click.Command):
            shown = CliRunner().invoke(main, ["--help"])
            assert shown.exit_code == 0, shown.output
            assert "--" in shown.output


def test_the_page_has_the_way_of_a_frame_once_and_keeps_what_was_written_by_hand() -> None:
    docs = Path(benchmarks.__path__[0]).parent / "docs"
    before, measured = (docs / "benchmarks.md").read_text(), json.loads((docs / "benchmarks.json").read_text())
    figures = [Figure("session", (3.0, 4.0), at_most=10.0, unit=" us"), Figure("prepare", (0.3, 0.2), at_most=0.12)]
    page = importlib.import_module("benchmarks.__main__").page
    written = page(measured, figures, before)
    assert "| session | 3.5 us | 3 to 4 | <= 10 us | reached |\n" in written
    assert "| prepare | 0.25x | 0.2 to 0.3 | <= 0.12x | **missed** |\n" in written
    assert _headings(written) == _headings(before)
    assert written.partition("## With models")[2] == before.partition("## With models")[2]
    assert page(measured, figures, written) == written


@pytest.mark.long
def test_what_a_session_and_prepare_cost_is_measured_in_processes_of_their_own() -> None:
    figures = [*hot_path.prepares(rounds=1), *hot_path.wrappers(rounds=1)]
    assert len({figure.name for figure in figures}) == 6
    assert [figure.limit for figure in figures] == ["<= 0.12x", "<= 0.85x"] * 2 + ["<= 10 us"] * 2
    assert all(figure.rounds[0] > 0 for figure in figures[:4])


def _headings(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("#")]
