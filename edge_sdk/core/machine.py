"""The machine: its cores, its processor, what the processors do, its free memory, and this process's heap.

Read from Linux's own files. Where they are missing or say nothing, what is not known is None, empty or what Python
counts; nothing here fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import os
import platform
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from edge_sdk.core.files import system_text

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
        """How many cores a model's threads may use: of more than two usable cores one is left to camera and broker."""
        return self.usable if self.usable <= 2 else self.usable - 1

    @classmethod
    def read(cls, root: Path = Path("/")) -> Cores:
        """Read the cores of this machine."""
        cpus = root / _CPUS
        online = _listed(system_text(cpus / "online")) or set(range(os.cpu_count() or 1))
        mask = _mask(root) & online or online
        quota = _quota(root)
        return cls(
            logical=len(online),
            physical=_physical(cpus, online),
            allowed=max(1, min(len(mask), quota)),
            usable=max(1, min(_physical(cpus, mask), quota)),
        )


def configured() -> int | None:
    """Return how many logical processors the machine can have online, which does not change while it runs."""
    try:
        count = os.sysconf("SC_NPROCESSORS_CONF")
    except (OSError, ValueError):
        return None
    return count if count > 0 else None


def _physical(cpus: Path, of: set[int]) -> int:
    """Count the cores that these logical processors are; each is one where nothing is known of its siblings."""
    cores = set()
    for number in of:
        texts = (system_text(cpus / f"cpu{number}" / "topology" / name) for name in _SIBLINGS)
        cores.add(next(filter(None, texts), str(number)))
    return len(cores)


def _mask(root: Path) -> set[int]:
    """Return the logical processors that this process may run on; empty where that is not known."""
    for line in system_text(root / "proc/self/status").splitlines():
        key, _, value = line.partition(":")
        if key == "Cpus_allowed_list":
            return _listed(value.strip())
    return set()


def _groups(root: Path) -> Iterator[Path]:
    """Give the folder of this process's control group, and those of the groups above it."""
    lines = system_text(root / "proc/self/cgroup").splitlines()
    folder = root / _CGROUPS
    yield folder
    for part in Path(next((line[3:] for line in lines if line.startswith("0::")), "")).parts:
        if part != "/":
            folder = folder / part
            yield folder


def _quota(root: Path) -> int:
    """Return the processors' worth of time that the control group and all above it leave; many without a limit."""
    least = float(1 << 16)
    for folder in _groups(root):
        limit, _, period = system_text(folder / "cpu.max").partition(" ")
        if limit.isdigit() and period.isdigit() and int(period):
            least = min(least, int(limit) / int(period))
    return int(least)


def _listed(text: str) -> set[int]:
    """Return the numbers of a list such as `0-2,5`; empty when it is none."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            return set()
        found.update(range(int(first), int(last if dash else first) + 1))
    return found


# x86 and ARM spell them differently. What changes by itself (clock, microcode) or is of one piece (serial) is left out.
_KEYS = frozenset(
    {
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "flags",
        "CPU implementer",
        "CPU architecture",
        "CPU variant",
        "CPU part",
        "CPU revision",
        "Features",
    }
)


class Cpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The processor of a machine.

    Attributes:
        name: the board's or the processor's, as Linux has it; maker and part by number where ARM has no name; else the
            architecture.
        digest: SHA-256 in hex of the board's name and of each kind of core: its make, and its instructions.
    """

    name: str
    digest: str

    @classmethod
    def read(cls, root: Path = Path("/")) -> Cpu:
        """Read the processor of this machine."""
        board = system_text(root / "proc/device-tree/model").strip("\0").strip()
        kinds = _kinds(system_text(root / "proc/cpuinfo"))
        said = msgspec.json.encode((board, platform.machine(), kinds))
        return cls(board or _name(kinds), hashlib.sha256(said).hexdigest())


_Kind = tuple[tuple[str, str], ...]


def _kinds(cpuinfo: str) -> list[_Kind]:
    """Return each kind of core once, sorted: cores that are switched off and on again change places."""
    kinds: set[_Kind] = set()
    for block in cpuinfo.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        known = tuple(sorted((key.strip(), value.strip()) for key, _, value in pairs if key.strip() in _KEYS))
        kinds.update([known] if known else [])
    return sorted(kinds)


def _name(kinds: list[_Kind]) -> str:
    for kind in map(dict, kinds):
        if "model name" in kind:
            return kind["model name"]
    numbered = [kind for kind in map(dict, kinds) if {"CPU implementer", "CPU part"} <= {*kind}]
    parts = [f"{kind['CPU implementer']}/{kind['CPU part']}" for kind in numbered]
    return f"{platform.machine()} {' + '.join(parts)}" if parts else platform.machine()


_IDLE, _WAITING = 3, 4  # columns of /proc/stat (proc_stat(5)): idle, and waiting for a disk
_COLUMNS = 8  # user, nice, system, idle, iowait, irq, softirq, steal; guests that follow are in the first two already


class CpuTime(msgspec.Struct, frozen=True):
    """Times since the machine started, in seconds, of the processors that this process may use.

    Attributes:
        total_s: that passed, of all of them together; 0 where it is not known.
        busy_s: that somebody worked, in this system or, for a virtual machine, beside it (steal).
        own_s: that this process worked, and those that it started and that have ended.
    """

    total_s: float
    busy_s: float
    own_s: float

    @classmethod
    def read(cls, root: Path = Path("/"), cpus: Collection[int] | None = None) -> CpuTime:
        """Read the times so far.

        Args:
            root: the folder that holds `proc`; another one in tests.
            cpus: numbers of the processors; those of this process's affinity mask by default.
        """
        names = {f"cpu{number}" for number in (os.sched_getaffinity(0) if cpus is None else cpus)}
        hertz = os.sysconf("SC_CLK_TCK")
        rows = [
            [int(value) / hertz for value in times[:_COLUMNS]]
            for name, *times in filter(None, map(str.split, system_text(root / "proc/stat").splitlines()))
            if name in names
        ]
        total_s = sum(map(sum, rows))
        idle_s = sum(times[_IDLE] + times[_WAITING] for times in rows)
        spent = os.times()
        own_s = spent.user + spent.system + spent.children_user + spent.children_system
        return cls(total_s, total_s - idle_s, own_s)

    def others_since(self, before: CpuTime) -> float | None:
        """Return the share of the processors' time that others took since `before`, 0-1; None where it is not known."""
        total_s = self.total_s - before.total_s
        if total_s <= 0:
            return None
        others_s = self.busy_s - before.busy_s - (self.own_s - before.own_s)
        return min(1.0, max(0.0, others_s / total_s))


_NO_LIMIT = 2**62
_GIVEN_BACK = ("inactive_file ", "slab_reclaimable ")
"""Of a group's memory: what the kernel takes back before it kills anybody. Files that were read are most of it."""


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that is free for this process: the machine's, or its control group's where that is less.

    Returns:
        Bytes; None where the machine does not say it.
    """
    lines = system_text(root / "proc/meminfo").splitlines()
    free = next((_number_after(line) for line in lines if line.startswith("MemAvailable:")), None)
    if free is None:
        return None
    return max(0, min(free * 1024, *map(_room_of, _groups(root))))


def _number_after(line: str) -> int | None:
    words = line.split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else None


def _room_of(group: Path) -> int:
    """Return what a control group leaves, in bytes; very much where it has no limit."""
    limit, used = system_text(group / "memory.max"), system_text(group / "memory.current")
    if not limit.isdigit() or not used.isdigit():
        return _NO_LIMIT
    lines = system_text(group / "memory.stat").splitlines()
    return int(limit) - int(used) + sum(_number_after(line) or 0 for line in lines if line.startswith(_GIVEN_BACK))


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


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage inside, and never what there is at its end.

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
