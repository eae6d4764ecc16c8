"""Failure: an error in one line for people, which says whose it is: the program's own, or the machine's."""

from __future__ import annotations

import re
import traceback
from pathlib import PurePath

from edge_sdk.errors import EdgeError
from edge_sdk.printable import one_line
from edge_sdk.want_of_memory import is_want_of_memory

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ONNXRUNTIME = "[ONNXRuntimeError] : "  # in front of what ONNX Runtime says; the caller names it

_WANT_OF_MEMORY = "out of memory: end other programs, or take a machine or a container with more of it"


def failure_line(error: BaseException) -> str:
    """What went wrong; what is neither foreseen nor want of memory is a bug of ours, and said to be one."""
    if is_want_of_memory(error):
        return _WANT_OF_MEMORY
    if isinstance(error, EdgeError):
        return str(error)
    return one_line(f"this is a bug in edge-sdk: {typed_line(error)}")


def typed_line(cause: BaseException) -> str:
    """Say in one line which exception it is and what it says, see `first_line`."""
    name, line = type(cause).__name__, first_line(cause)
    return line if line.startswith(name) else f"{name}: {line}"


def first_line(cause: BaseException) -> str:
    """Say in one line what an exception of somebody else's code says.

    Returns:
        The first line of its text that is not blank, see `one_line`. Of an exception without a text, such as a bare
        `assert`, its type and the file and line that raised it.
    """
    lines = (line.strip() for line in _COLOURS.sub("", str(cause)).splitlines())
    line = one_line(next(filter(None, lines), "")).removeprefix(_ONNXRUNTIME)
    if line:
        return line
    frames = traceback.extract_tb(cause.__traceback__)
    place = f" ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(cause).__name__}{place}"
