"""Fault: an exception of somebody else's code, in one line that says where it happened."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def describe_fault(cause: BaseException, folder: Path) -> str:
    """One line: the type, its first line of text, and file and line.

    Args:
        cause: what was raised.
        folder: the user's code; the innermost frame in it is named, else the innermost of all.
    """
    name = type(cause).__name__
    if isinstance(cause, SyntaxError) and cause.filename:
        return f"{name}: {cause.msg} ({Path(cause.filename).name}:{cause.lineno})"
    text = first_line(cause)
    frames = traceback.extract_tb(cause.__traceback__)
    theirs = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    if not frames:
        return f"{name}: {text}"
    place = (theirs or frames)[-1]
    return f"{name}: {text} ({Path(place.filename).name}:{place.lineno})"


def first_line(cause: BaseException) -> str:
    """The first line of an exception's text, without colours; its type where it says nothing."""
    lines = [line.strip() for line in _COLOURS.sub("", str(cause)).splitlines()]
    return next((line for line in lines if line), type(cause).__name__)


def root_cause(cause: BaseException) -> BaseException:
    """The exception that the others were raised from."""
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return cause
