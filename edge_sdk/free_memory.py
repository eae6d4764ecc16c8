"""Free memory: what this process may still take, of the machine or of its control group."""

from __future__ import annotations

import contextlib
from pathlib import Path

_NO_LIMIT = 2**62
_GIVEN_BACK = ("inactive_file", "slab_reclaimable")
"""Of a group's memory: what the kernel takes back before it kills anybody. Files that were read are most of it."""


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory that is free for this process: the machine's, or its control group's where that is less.

    Args:
        root: the folder that holds `proc` and `sys`; another one in tests.

    Returns:
        Bytes; None where the machine does not say it.
    """
    free = _available(root)
    if free is None:
        return None
    groups = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError, ValueError):
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        group = groups / next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), "")
        for folder in (group, *group.parents):
            if folder.is_relative_to(groups):
                free = min(free, _room_of(folder))
    return max(0, free)


def _available(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), [])
    return int(words[1]) * 1024 if len(words) > 1 and words[1].isdigit() else None


def _room_of(group: Path) -> int:
    """What a control group leaves, in bytes; very much where it has no limit."""
    highest = group / "memory.max"
    limit = highest.read_text(encoding="ascii").strip() if highest.exists() else "max"
    if limit == "max":
        return _NO_LIMIT
    words = [line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines()]
    given_back = sum(int(word[1]) for word in words if word[0] in _GIVEN_BACK)
    return int(limit) - int((group / "memory.current").read_text(encoding="ascii")) + given_back
