"""Heap: memory that was freed goes back to the system."""

from __future__ import annotations

import ctypes


def give_back_freed() -> None:
    """Give freed memory back, where the C library can; elsewhere nothing happens.

    glibc keeps what is freed below memory that is still in use: after an ONNX model was read, several times its size.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
