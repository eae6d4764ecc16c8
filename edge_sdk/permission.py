"""Permission: whether this user may read a file or a folder, said with what to do."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path


def want_of_permission(path: Path) -> str:
    """Says who must be let in where this user may not read it; empty where it may, or where nothing is there."""
    try:
        mode = path.stat().st_mode
    except PermissionError:
        return f"permission denied; let {_user()} into its folder"
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        return ""
    wanted = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK
    return "" if os.access(path, wanted, effective_ids=True) else f"permission denied; let {_user()} read it"


def _user() -> str:
    number = os.geteuid()
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except (KeyError, OSError):
        return f"user {number}"
