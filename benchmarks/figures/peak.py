"""Peak memory of a process, of itself alone.

What wait4 and getrusage say counts the memory of the process that started it too, until it became another program.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

_LOOK_S = 0.01


def peak_mb(pid: int) -> float:
    """Peak resident memory so far, MiB; 0 where there is no such process any more."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0")
    return int(line.split()[1]) / 1024


def peak_until_end(process: subprocess.Popen[bytes]) -> float:
    """Look at a process until it ends; its peak resident memory, MiB."""
    most = 0.0
    while process.poll() is None:
        most = max(most, peak_mb(process.pid))
        time.sleep(_LOOK_S)
    return most
