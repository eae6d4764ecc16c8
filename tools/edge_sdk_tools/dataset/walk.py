"""Files below a folder.

Owns what is left out (hidden files) and that a loop of links ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from edge_sdk.core.errors import DataError


def files_below(folder: Path) -> list[Path]:
    """Every file below `folder`, in order of their paths; hidden ones and what is in hidden folders left out.

    Links to folders are followed, each folder is entered once.

    Raises:
        DataError: when a folder cannot be read.
    """
    return sorted(_walk(folder), key=lambda path: path.parts)


def _walk(folder: Path) -> Iterator[Path]:
    entered: set[tuple[int, int]] = set()
    for root, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        status = Path(root).stat()
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in files if not name.startswith("."))


def subfolders(folder: Path) -> list[Path]:
    """The folders in `folder`, in order of their names, hidden ones left out.

    Raises:
        DataError: when it cannot be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and is_folder(path))
    except OSError as cause:
        _refuse(cause)


def is_file(path: Path) -> bool:
    """Whether a file is there; a name that no file system takes is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a folder is there; a name that no file system takes is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _refuse(cause: OSError) -> NoReturn:
    raise DataError(f"{cause.filename}: folder cannot be read: {cause.strerror}") from cause
