"""Cores: how many this machine has, and how many of them this process may use.

Owns the reading of Linux's own files; where they are missing or say nothing, it answers what Python counts.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

_CPUS = "sys/devices/system/cpu"
_CGROUPS = "sys/fs/cgroup"
_SIBLINGS = ("core_cpus_list", "thread_siblings_list")  # the second is what kernels before 5.3 call the first


class Cores(msgspec.Struct, frozen=True):
    """The processors of a machine, as one process sees them.

    Attributes:
        logical: those that are online; a core with two hyperthreads counts twice.
        physical: the cores that they are.
        allowed: logical ones that this process may keep busy: its affinity mask, and its control group's quota rounded
            down, 1 at least.
        usable: the same, in physical cores: more threads than that stand in each other's way.
    """

    logical: int
    physical: int
    allowed: int
    usable: int

    @property
    def for_model(self) -> int:
        """How many a model's threads may keep busy: of more than two usable ones one is left to camera and broker."""
        return self.usable if self.usable <= 2 else self.usable - 1

    @classmethod
    def read(cls, root: Path = Path("/")) -> Cores:
        """Read them.

        Args:
            root: the folder that holds `proc` and `sys`; another one in tests.
        """
        cpus = root / _CPUS
        online = _listed(_text(cpus / "online")) or set(range(os.cpu_count() or 1))
        mask = _mask(root) & online or online
        quota = _quota(root)
        return cls(
            logical=len(online),
            physical=_physical(cpus, online),
            allowed=max(1, min(len(mask), quota)),
            usable=max(1, min(_physical(cpus, mask), quota)),
        )


def configured() -> int | None:
    """How many logical ones the machine can have online, which does not change while it runs; None: not known."""
    try:
        count = os.sysconf("SC_NPROCESSORS_CONF")
    except (OSError, ValueError):
        return None
    return count if count > 0 else None


def _physical(cpus: Path, of: set[int]) -> int:
    """Cores that these logical ones are; each is one where nothing is known of its siblings."""
    return len({_siblings(cpus / f"cpu{number}" / "topology") or str(number) for number in of})


def _siblings(topology: Path) -> str:
    return next((text for name in _SIBLINGS if (text := _text(topology / name))), "")


def _mask(root: Path) -> set[int]:
    """The logical ones that the scheduler may put this process on; empty where that is not known."""
    for line in _text(root / "proc/self/status").splitlines():
        key, _, value = line.partition(":")
        if key == "Cpus_allowed_list":
            return _listed(value.strip())
    return set()


def _quota(root: Path) -> int:
    """Whole processors' worth of time that the control group and all above it leave; very many without a limit."""
    lines = _text(root / "proc/self/cgroup").splitlines()
    group = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    folder = root / _CGROUPS
    least = float(1 << 16)
    for part in ("", *Path(group).parts):
        folder = folder / part
        limit, _, period = _text(folder / "cpu.max").partition(" ")
        if limit.isdigit() and period.isdigit() and int(period):
            least = min(least, int(limit) / int(period))
    return int(least)


def _listed(text: str) -> set[int]:
    """The numbers of a list such as `0-2,5`; empty when it is none."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            return set()
        found.update(range(int(first), int(last if dash else first) + 1))
    return found


def _text(path: Path) -> str:
    """What the file says, without the line feed; nothing when it cannot be read."""
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
