"""Every benchmark still finds what it imports and names its options: nobody runs them all at each change."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import benchmarks

_NAMES = sorted(path.stem for path in Path(benchmarks.__path__[0]).glob("*.py") if not path.stem.startswith("__"))


@pytest.mark.parametrize("name", [*_NAMES, "__main__"])
def test_it_is_there(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    main = getattr(module, "main", None)
    if isinstance(main, click.Command):
        shown = CliRunner().invoke(main, ["--help"])
        assert shown.exit_code == 0, shown.output
        assert "--" in shown.output
