"""The file that an import is pointed at: whether it is there is said before anything else."""

from __future__ import annotations

import stat
from pathlib import Path

from edge_sdk.errors import ModelError


def check_source(source: Path, what: str, *, folder: bool = False) -> None:
    """See that SOURCE is there.

    Args:
        source: as the user named it.
        what: it should be, for the error.
        folder: whether it may be a folder.

    Raises:
        ModelError: it is not there, cannot be looked at, or is a folder that it may not be.
    """
    try:
        mode = source.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        kinds = "file or folder" if folder else "file"
        raise ModelError(f"{source}: no such {kinds}; SOURCE is {what}") from None
    except OSError as cause:
        raise ModelError(f"{source}: cannot be read: {cause.strerror}; SOURCE is {what}") from cause
    if stat.S_ISDIR(mode) and not folder:
        raise ModelError(f"{source}: is a folder; SOURCE is {what}")
