"""Failure: an error in one line for people, which says whose it is: the program's own, or the machine's."""

from __future__ import annotations

from edge_sdk.errors import EdgeError
from edge_sdk.want_of_memory import is_want_of_memory

_WANT_OF_MEMORY = "out of memory: end other programs, or take a machine or a container with more of it"


def failure_line(error: BaseException) -> str:
    """What went wrong; what is neither foreseen nor want of memory is a bug of ours, and said to be one."""
    if is_want_of_memory(error):
        return _WANT_OF_MEMORY
    if isinstance(error, EdgeError):
        return str(error)
    return f"this is a bug in edge-sdk: {type(error).__name__}: {error}".splitlines()[0]
