"""Paths of a command line."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import click

_MAY_LACK = (errno.ENOENT, errno.ENOTDIR)  # what is not there yet is to be made, or refused in the verb's own words


class _Path(click.Path):
    """A path that can be looked at, whether something is there or not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            Path(value).stat()
        except OSError as cause:
            if cause.errno not in _MAY_LACK:
                self.fail(f"{value}: {cause.strerror}", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path)
"""For every argument and option that is a path: one that is too long or leads in a circle is refused at once."""
