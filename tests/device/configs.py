"""Configuration files for tests."""

from __future__ import annotations

from pathlib import Path

STREAM = '[[pipelines]]\nname = "gate"\nsource = "0"\nbundle = "a.edge"\n'
"""The least that a stream says."""


def write_config(folder: Path, text: str = STREAM, *, version: str = "version = 1\n") -> Path:
    """A file of the present version."""
    path = folder / "config.toml"
    path.write_text(version + text, encoding="utf-8")
    return path
