"""Packages of other frameworks: imported when all that is cheap has been checked, and named where they are missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from edge_sdk.core.errors import MissingDependencyError


@contextlib.contextmanager
def needed_by(source: str, package: str, remedy: str) -> Iterator[None]:
    """Import a framework inside this; a missing package becomes an error that names the remedy.

    Args:
        source: the kind of import, as in `edge-sdk import SOURCE`.
        package: named where the failed import does not say what it lacks.
        remedy: what to do about it.

    Raises:
        MissingDependencyError: exit code 8.
    """
    try:
        yield
    except ImportError as cause:
        raise MissingDependencyError(f"`edge-sdk import {source}` needs {cause.name or package}; {remedy}") from cause
