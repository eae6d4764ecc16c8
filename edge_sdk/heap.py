"""Heap: one for all threads, and memory that was freed goes back to the system."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # of glibc's malloc.h


def share_one_heap() -> None:
    """Let all threads that are started from now on share one heap, where the C library can; elsewhere nothing happens.

    glibc gives each its own: what the thread that loads a model has freed there, the others cannot use.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)


def give_back_freed() -> None:
    """Give freed memory back, where the C library can; elsewhere nothing happens.

    glibc keeps what is freed below memory that is still in use: after an ONNX model was read, several times its size.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
