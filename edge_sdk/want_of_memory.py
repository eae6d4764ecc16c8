"""Tells want of memory from other failures: libraries say it in words of their own, and in errors of any type."""

from __future__ import annotations

import errno
from collections.abc import Iterator

_WORDS = (
    "bad_alloc",
    "bad allocation",
    "cannot allocate memory",
    "failed to allocate memory",
    "failed to map segment",
    "can't start new thread",
    "insufficient memory",  # OpenCV
    "out of memory",
    "resource temporarily unavailable",  # a thread or a process that has no room for its stack
    "unable to allocate",  # numpy
)


def is_want_of_memory(error: BaseException) -> bool:
    """Whether an error, or what it came from, is that there is no memory left."""
    return any(_says_so(one) for one in _chain(error))


def says_want_of_memory(text: str) -> bool:
    """Whether what a library or a process printed is that there is no memory left."""
    words = text.casefold()
    return any(known in words for known in _WORDS)


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return says_want_of_memory(str(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, the last first; each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
