"""The folder that an import writes into: whether it can be written is found out before the work, not after it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from edge_sdk.core.errors import OutputError


def check_writable(folder: Path, output: Path) -> None:
    """Open a file without a name in `folder`, or in the nearest folder above it that is there.

    Args:
        folder: where the import writes.
        output: what it writes, for the error.

    Raises:
        OutputError: the system refuses; permissions alone do not tell a file system that is mounted read-only.
    """
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as cause:
        raise OutputError(f"{output}: cannot be written: {cause.strerror or cause}; nothing was changed") from cause
