"""Files that a list names, relative to folders.

Owns that a list reaches nothing outside of them by its names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from edge_sdk.core.errors import DataError
from edge_sdk.core.toml import shown
from edge_sdk_tools.dataset.walk import is_file


def listed_file(name: str, folders: Sequence[Path], where: str) -> Path | None:
    """The file of this name in the first folder that has it, or None.

    Args:
        name: relative, with `/` between folders.
        folders: searched in turn.
        where: begins the message.

    Raises:
        DataError: when the name is empty, absolute or leads out of the folder.
    """
    relative = PurePosixPath(name)
    if not name or relative.is_absolute() or ".." in relative.parts:
        raise DataError(f"{where}: file is {shown(name)}, expected a name relative to {folders[0]} and inside it")
    return next((folder / name for folder in folders if is_file(folder / name)), None)
