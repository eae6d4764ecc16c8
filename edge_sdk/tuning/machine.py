"""Machine: what a measurement was taken on; on another one it says nothing."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from edge_sdk.cores import Cores
from edge_sdk.cpu import Cpu
from edge_sdk.session import available_providers, onnxruntime_version

_GIB = 1 << 30


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine and its ONNX Runtime.

    Attributes:
        cpu: its kinds of cores.
        logical, physical, allowed: cores; see `Cores`.
        memory_gib: its memory, rounded up to a power of two: kernels and graphics take different bites of it.
        onnxruntime: version.
        providers: execution providers that it was built with.
    """

    cpu: Cpu
    logical: int
    physical: int
    allowed: int
    memory_gib: int
    onnxruntime: str
    providers: tuple[str, ...]

    @classmethod
    def here(cls, root: Path = Path("/")) -> Machine:
        """This one.

        Args:
            root: the folder that holds `proc` and `sys`; another one in tests.
        """
        cores = Cores.read(root)
        return cls(
            Cpu.read(root),
            cores.logical,
            cores.physical,
            cores.allowed,
            _memory_class_gib(),
            onnxruntime_version(),
            available_providers(),
        )

    def difference(self, other: Machine) -> str | None:
        """What differs first, as `CPU 'x', now 'y'`, with `other` as it is now; None where nothing does."""
        if self.cpu != other.cpu:
            is_namesake = self.cpu.name == other.cpu.name
            then, now = self.cpu.name, "one of that name with other cores" if is_namesake else other.cpu.name
            return f"CPU {then}, now {now}"
        names = {
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
        if self.providers != other.providers:
            return f"execution providers {', '.join(self.providers)}, now {', '.join(other.providers)}"
        return None


def _memory_class_gib() -> int:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = 1
    while size * _GIB < pages:
        size *= 2
    return size
