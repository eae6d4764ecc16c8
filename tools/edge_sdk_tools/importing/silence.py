"""Silence: what exporters and users' code print and warn stays off the terminal; their exceptions come through.

Owns file descriptors 1 and 2, logging and warnings while it lasts, and no judgement of what was said.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def silenced() -> Iterator[list[warnings.WarningMessage]]:
    """Hear nothing inside this.

    Yields:
        The warnings that were given so far, in order; the same list grows.
    """
    logging_before = logging.root.manager.disable
    with warnings.catch_warnings(record=True) as heard, _descriptors_to_nowhere(), io.StringIO() as nowhere:
        warnings.simplefilter("always")
        logging.disable(logging.CRITICAL)
        try:
            with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                yield heard
        finally:
            logging.disable(logging_before)


@contextlib.contextmanager
def _descriptors_to_nowhere() -> Iterator[None]:
    """Redirect where the system sees it: libraries in C++ print past Python's own streams."""
    kept = {}
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        with contextlib.suppress(OSError, AttributeError):  # closed before the program was started
            stream.flush()
            kept[descriptor] = os.dup(descriptor)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for descriptor in kept:
            os.dup2(nowhere, descriptor)
        yield
    finally:
        for descriptor, copy in kept.items():
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(nowhere)
