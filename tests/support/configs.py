"""Configuration files for tests, and code that runs as a user who is not root."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

# Configuration files for tests.

Table = Mapping[str, object]
"""Keys of one table."""

PIPELINE = '[[pipelines]]\nname = "gate"\nsource = "0"\nbundle = "a.edge"\n'
"""The least that a pipeline needs."""

HEALTHY: Table = {"source": "pattern:320x240@20"}
"""A pipeline whose source needs nothing and never ends."""

AT_EASE: Table = {"tune": False, "latency_ms": 5000}
"""A pipeline that measures nothing, and is not late on a busy machine either."""


def config_text(pipelines: Mapping[str, Table], **tables: Table | None) -> str:
    named = {"device": {"name": "pi"}, **tables}
    parts = [(f"[{name}]", table) for name, table in named.items() if table is not None]
    parts += [("[[pipelines]]", {"name": name, **table}) for name, table in pipelines.items()]
    lines: list[str] = []
    for title, table in parts:
        # The values used here are written alike in JSON and TOML.
        lines += ["", title, *(f"{key} = {json.dumps(value, default=str)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def write_config(folder: Path, text: str = PIPELINE, *, version: str = "version = 1\n") -> Path:
    """A file of the present version, `config.toml`; one that is there is replaced at once."""
    path = folder / "config.toml"
    fresh = path.with_suffix(".new")
    fresh.write_text(version + text, encoding="utf-8")
    return fresh.replace(path)


def write_at_ease(folder: Path, bundle: Path, pipelines: Mapping[str, Table], **tables: Table | None) -> Path:
    """A file whose pipelines run one bundle, with `AT_EASE`; `tables` are those of `config_text`."""
    return write_config(folder, config_text(pipelines, **tables, defaults={**AT_EASE, "bundle": bundle}))


# Code that runs as a user who is not root.


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Write files as a kernel shows them: each text ends with a line feed, unless it ends with a NUL."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text if text.endswith("\0") else text + "\n")
    return root
