"""The files that an import is pointed at: whether they can be read is said before anything slow is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from edge_sdk.core.errors import ModelError
from edge_sdk.core.files import open_regular
from edge_sdk_tools.dataset.walk import is_folder


def check_source(path: Path, expected: str, *, folder: bool = False, most_bytes: int | None = None) -> None:
    """See that a file is there and can be opened; libraries would wait at a pipe, and read a device for ever.

    Args:
        path: as the user named it.
        expected: what it should be, for the error.
        folder: whether it may be a folder.
        most_bytes: how large it may be; None for any size.

    Raises:
        ModelError: it is not there, cannot be opened, is no regular file, or too large.
    """
    if folder and is_folder(path):
        return
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        kinds = "file or folder" if folder else "file"
        raise ModelError(f"{path}: no such {kinds}; {expected}") from None
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read: {cause.strerror}; {expected}") from cause
    if most_bytes is not None and size > most_bytes:
        raise ModelError(f"{path}: has {size} bytes; {expected}")
