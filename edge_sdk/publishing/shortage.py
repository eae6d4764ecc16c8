"""Shortage: what is said where the process has no descriptor left, which is nobody's fault but its limit's."""

from __future__ import annotations

import errno
import os

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE})

_MORE_FILES = "let this process open more: LimitNOFILE= of its unit, ulimit -n, or prlimit --nofile while it runs"


def in_words(cause: OSError) -> str:
    """What went wrong, with what to do where there is no descriptor left."""
    said = cause.strerror or str(cause) or type(cause).__name__
    return f"{said}; {_MORE_FILES}" if cause.errno in _SHORTAGES else said


def of_descriptors() -> str:
    """What is said where nothing can be opened now; SQLite says of that that a folder is closed to us. Else nothing."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as cause:
        return f"too many files are open; {_MORE_FILES}" if cause.errno in _SHORTAGES else ""
    return ""
