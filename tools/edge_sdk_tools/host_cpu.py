"""What the workstation's CPU does to INT8: x86 before VNNI sums U8S8 products in saturating 16-bit lanes.

With full-range weights such a host would measure, and write down as golden, results that no ARM board and no newer x86
gives.
"""

from __future__ import annotations

import platform
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")


def host_saturates() -> bool:
    """Whether this machine does."""
    machine = platform.machine()
    return machine == "x86_64" and saturates(machine, _CPU_INFO.read_text(encoding="utf-8", errors="replace"))


def saturates(machine: str, cpu_info: str) -> bool:
    """Whether a machine does.

    Args:
        machine: `platform.machine()`.
        cpu_info: text of /proc/cpuinfo.
    """
    return machine == "x86_64" and "vnni" not in cpu_info
