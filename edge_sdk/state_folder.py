"""The state folder: where a device keeps what it found out about itself, and how a record gets there whole.

Owns the place and the way of writing. What a record holds is its owner's; nothing in it is needed to run.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from edge_sdk.errors import OutputError


def state_folder() -> Path:
    """The folder, which need not exist yet.

    systemd's $STATE_DIRECTORY (the first, where there are several), else `edge-sdk` in $XDG_STATE_HOME, else
    ~/.local/state/edge-sdk. A relative $XDG_STATE_HOME is passed over, as its specification demands.

    Raises:
        OutputError: none of the variables is set and this user has no home.
    """
    by_systemd = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if by_systemd:
        return Path(by_systemd)
    by_user = Path(os.environ.get("XDG_STATE_HOME", ""))
    if by_user.is_absolute():
        return by_user / "edge-sdk"
    try:
        return Path.home() / ".local" / "state" / "edge-sdk"
    except RuntimeError as cause:
        raise OutputError(
            "this user has no home folder; set $XDG_STATE_HOME to a folder that can be written"
        ) from cause


def write_record(path: Path, data: bytes) -> None:
    """Put a record where others read it: the old one or the new one is there, never a half, whoever else writes.

    Args:
        path: of the record; its folder is made where it is missing.
        data: all of it.

    Raises:
        OutputError: it cannot be written; what was there before still is.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # without it a power cut leaves an empty file under the final name
            Path(partial).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(partial).unlink()
            raise
    except OSError as cause:
        raise OutputError(f"{path}: cannot be written: {cause.strerror or cause}") from cause
