"""Machine: what a measurement was taken on; on another one it says nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

from edge_sdk.cores import Cores
from edge_sdk.session import onnxruntime_version

_GIB = 1 << 30


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine and its ONNX Runtime.

    Attributes:
        cpu: the board's or the processor's name, as Linux has it; the architecture where it has none.
        logical, physical, allowed: cores; see `Cores`.
        memory_gib: its memory, rounded up to a power of two: kernels and graphics take different bites of it.
        onnxruntime: version.
    """

    cpu: str
    logical: int
    physical: int
    allowed: int
    memory_gib: int
    onnxruntime: str

    @classmethod
    def here(cls, root: Path = Path("/")) -> Machine:
        """This one.

        Args:
            root: the folder that holds `proc` and `sys`; another one in tests.
        """
        cores = Cores.read(root)
        return cls(_cpu(root), cores.logical, cores.physical, cores.allowed, _memory_class_gib(), onnxruntime_version())

    def difference(self, other: Machine) -> str | None:
        """What differs first, as `CPU 'x', now 'y'`, with `other` as it is now; None where nothing does."""
        names = {
            "cpu": "CPU",
            "logical": "logical cores",
            "physical": "physical cores",
            "allowed": "allowed cores",
            "memory_gib": "GiB of memory",
            "onnxruntime": "ONNX Runtime",
        }
        for field, name in names.items():
            then, now = getattr(self, field), getattr(other, field)
            if then != now:
                return f"{name} {then}, now {now}"
        return None


def _cpu(root: Path) -> str:
    board = _text(root / "proc/device-tree/model").strip("\0").strip()
    if board:
        return board
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _memory_class_gib() -> int:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = 1
    while size * _GIB < pages:
        size *= 2
    return size


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
