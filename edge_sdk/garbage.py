"""Garbage: when Python looks for it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Look for no garbage inside, and never in what there is at its end.

    For modules, which are none: to look for some while they load is a tenth of a start. Only for the start: whatever
    there is at its end stays for ever, once it is garbage too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
