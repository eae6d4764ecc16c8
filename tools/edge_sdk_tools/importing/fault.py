"""Fault: an exception of somebody else's code, in one line that says where it happened."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

from edge_sdk.core.errors import first_line


def describe_fault(cause: BaseException, folder: Path) -> str:
    """One line: the type, its first line of text, and file and line.

    Args:
        cause: what was raised.
        folder: the user's code; the innermost frame in it is named, else the innermost of all.
    """
    name = type(cause).__name__
    if isinstance(cause, SyntaxError) and cause.filename:
        return f"{name}: {cause.msg} ({Path(cause.filename).name}:{cause.lineno})"
    frames = traceback.extract_tb(cause.__traceback__)
    place = place_in(cause, folder) or _innermost(frames)
    said = f"{name}: {first_line(cause)}" if str(cause).strip() else name
    return f"{said}{f' ({place})' if place else ''}"


def place_in(cause: BaseException, folder: Path) -> str:
    """`FILE.py:LINE` of the innermost frame in `folder`; empty where there is none."""
    frames = traceback.extract_tb(cause.__traceback__)
    return _innermost([frame for frame in frames if Path(frame.filename).is_relative_to(folder)])


def place_outside(cause: BaseException, folders: Sequence[Path]) -> str:
    """`FILE.py:LINE` of the innermost frame in none of `folders`; empty where there is none."""
    frames = traceback.extract_tb(cause.__traceback__)
    return _innermost([f for f in frames if not any(map(Path(f.filename).is_relative_to, folders))])


def root_cause(cause: BaseException) -> BaseException:
    """The exception that the others were raised from."""
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return cause


def _innermost(frames: Sequence[traceback.FrameSummary]) -> str:
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
