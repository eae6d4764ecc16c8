"""Read the machine's cores, processor, processor times and free memory, and control this process's heap.

The values come from files of /proc and /sys. Where these are missing or implausible, a value is None, empty or what
Python reports; no function here raises an error for that. `BoardWatch` reads whether the board slows itself down, hot
or short of power, in a thread of its own, because a read of /sys asks a driver and may take long.
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
from edge_sdk.core.threads import Periodic

_CPUS = "sys/devices/system/cpu"
_CGROUPS = "sys/fs/cgroup"


class Cores(msgspec.Struct, frozen=True):
    """The processors of a machine, as one process sees them.

    Attributes:
        logical: number of processors online; a core with two hyperthreads counts twice.
        physical: number of cores that these processors are part of.
        allowed: number of logical processors that this process may use, by its affinity mask and its control group's
            quota rounded down; 1 at least.
        usable: the same in physical cores; more threads than this slow each other down.
    """

    logical: int
    physical: int
    allowed: int
    usable: int

    @property
    def for_model(self) -> int:
        """Return how many cores a model may use: all but one, left to camera and broker; one or two are used fully."""
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


def _physical(cpus: Path, of: set[int]) -> int:
    """Count the cores of these logical processors; a processor with unknown siblings counts as one core."""
    return len({system_text(cpus / f"cpu{number}" / "topology" / "core_cpus_list") or str(number) for number in of})


def _mask(root: Path) -> set[int]:
    """Return the logical processors that this process may run on; empty if unknown."""
    for line in system_text(root / "proc/self/status").splitlines():
        key, _, value = line.partition(":")
        if key == "Cpus_allowed_list":
            return _listed(value.strip())
    return set()


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folder of this process's control group and those of its parent groups."""
    lines = system_text(root / "proc/self/cgroup").splitlines()
    folder = root / _CGROUPS
    yield folder
    for part in Path(next((line[3:] for line in lines if line.startswith("0::")), "")).parts:
        if part != "/":
            folder = folder / part
            yield folder


def _quota(root: Path) -> int:
    """Return how many processors' time the control groups allow; a very large number without a limit."""
    least = float(1 << 16)
    for folder in _groups(root):
        limit, _, period = system_text(folder / "cpu.max").partition(" ")
        if limit.isdigit() and period.isdigit() and int(period):
            least = min(least, int(limit) / int(period))
    return int(least)


def _listed(text: str) -> set[int]:
    """Return the numbers of a list such as `0-2,5`; empty if the text is no such list."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            return set()
        found.update(range(int(first), int(last if dash else first) + 1))
    return found


# x86 and ARM spell these keys differently. Values that change (clock, microcode) or identify one unit (serial) are left
# out.
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
        name: the board's or the processor's name as Linux reports it; the numbers of maker and part for an ARM core
            without a name; else the architecture.
        digest: SHA-256 in hex of the board's name and of the make and the instructions of each kind of core.
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
    """Return each kind of core once, sorted, because cores that are switched off and on change places."""
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
_COLUMNS = 8  # user, nice, system, idle, iowait, irq, softirq, steal; guest times after them are part of the first two


class CpuTime(msgspec.Struct, frozen=True):
    """Times in seconds since the machine started, of the processors that this process may use.

    Attributes:
        total_s: time that passed, summed over the processors; 0 if unknown.
        busy_s: time that the processors were busy, with this system or, under a virtual machine, with others (steal).
        own_s: processor time of this process and of its child processes that have ended.
    """

    total_s: float
    busy_s: float
    own_s: float

    @classmethod
    def read(cls, root: Path = Path("/"), cpus: Collection[int] | None = None) -> CpuTime:
        """Read the times so far, of the processors with these numbers or of this process's affinity mask."""
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
        """Return the share of processor time that other processes took since `before`, 0-1; None if unknown."""
        total_s = self.total_s - before.total_s
        if total_s <= 0:
            return None
        others_s = self.busy_s - before.busy_s - (self.own_s - before.own_s)
        return min(1.0, max(0.0, others_s / total_s))


_NO_LIMIT = 2**62
_GIVEN_BACK = ("inactive_file ", "slab_reclaimable ")
"""Memory of a control group that the kernel reclaims before it kills a process; most of it is cached files."""


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the free memory of the machine, or of this process's control group if that is less; None if unknown."""
    lines = system_text(root / "proc/meminfo").splitlines()
    free = next((_number_after(line) for line in lines if line.startswith("MemAvailable:")), None)
    if free is None:
        return None
    return max(0, min(free * 1024, *map(_room_of, _groups(root))))


def _number_after(line: str) -> int | None:
    words = line.split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else None


def _room_of(group: Path) -> int:
    """Return the free memory of a control group in bytes; a very large number without a limit."""
    limit, used = system_text(group / "memory.max"), system_text(group / "memory.current")
    if not limit.isdigit() or not used.isdigit():
        return _NO_LIMIT
    lines = system_text(group / "memory.stat").splitlines()
    return int(limit) - int(used) + sum(_number_after(line) or 0 for line in lines if line.startswith(_GIVEN_BACK))


_M_ARENA_MAX = -8  # from glibc's malloc.h


def share_one_heap() -> None:
    """Let all threads started from now on share one heap, if the C library supports it.

    glibc gives each thread its own heap, so memory that the thread loading a model frees is unusable for the others.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)


def give_back_freed() -> None:
    """Return freed memory to the system, if the C library supports it.

    glibc keeps freed memory below memory in use; after an ONNX model was read, that is several times its size.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage in this context, and never collect the objects that exist at its end.

    Use it only for imports at the start: searching for garbage while modules load takes a tenth of the start. Objects
    that exist at the end are never freed, even if they become garbage.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


_ROOT = Path("/sys")
_INTERVAL_S = 1.0
_FIRMWARE = "soc*/soc*:firmware/get_throttled"  # of a Raspberry Pi, in hex; model 5 has addresses in both names
# The present state. Bits 16 to 19 report what happened since the start, and are never cleared.
_FIRMWARE_BITS = {
    0: "under-voltage",
    1: "the firmware caps the CPU's frequency",
    2: "the firmware throttles",
    3: "the soft temperature limit is reached",
}
_UNDER_VOLTAGE = 0  # number of the bit
_VOLTAGE_DRIVER = "rpi_volt"  # driver in mainline kernels for a Raspberry Pi's power supply
_SLOWING = ("passive", "hot", "critical")  # types of trip points from which the kernel slows something down
_LONGEST_NUMBER = 20  # digits of a 64-bit number
_SENSIBLE_C = (1.0, 200.0)  # zones without a trip point report 0 or the lowest number


class BoardState(msgspec.Struct, frozen=True):
    """The board's own report: throttling, low voltage and temperature.

    Attributes:
        throttled: why the board slows itself down now, for people; empty if it does not, or if unknown.
        temperature_c: temperature of the hottest zone in degrees Celsius; None: unknown.
        under_voltage: whether the power supply is too weak now; None: unknown.
    """

    throttled: str = ""
    temperature_c: float | None = None
    under_voltage: bool | None = None


def read_board(root: Path = _ROOT) -> BoardState:
    """Read the present state of the board."""
    zones = list(_zones(root))
    flags = [bits for file in _found(root / "devices/platform", _FIRMWARE) if (bits := _number(file, 16)) is not None]
    firmware = [text for bits in flags for bit, text in _FIRMWARE_BITS.items() if bits >> bit & 1]
    voltages = [*(bool(bits >> _UNDER_VOLTAGE & 1) for bits in flags), *_voltage_alarms(root)]
    low = [_FIRMWARE_BITS[_UNDER_VOLTAGE]] if any(voltages) else []
    hot = [
        f"{now:.0f} degrees, slowed down from {trip:.0f} on" for now, trip in zones if trip is not None and now >= trip
    ]
    reasons = [*low, *firmware, *hot, *_cooling(root)]
    return BoardState(
        throttled=", ".join(dict.fromkeys(reasons)),
        temperature_c=max((temperature for temperature, _ in zones), default=None),
        under_voltage=any(voltages) if voltages else None,
    )


class BoardWatch:
    """Reads the board's state once a second, in a thread of its own.

    Attributes:
        state: the latest state; this attribute can be read at no cost.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        self.state = BoardState()
        self._root = root
        self._reading = Periodic(self._read, _INTERVAL_S, "edge-board")

    def close(self) -> None:
        """Stop reading; does not wait for a driver that hangs."""
        self._reading.close()

    def _read(self) -> None:
        self.state = read_board(self._root)


def _voltage_alarms(root: Path) -> Iterator[bool]:
    for name in _found(root / "class/hwmon", "hwmon*/name"):
        alarm = _number(name.with_name("in0_lcrit_alarm")) if system_text(name) == _VOLTAGE_DRIVER else None
        if alarm is not None:
            yield alarm > 0


def _zones(root: Path) -> Iterator[tuple[float, float | None]]:
    """Yield each zone's temperature and the lowest temperature at which it slows something down, in degrees Celsius."""
    for zone in _found(root / "class/thermal", "thermal_zone*"):
        temperature = _celsius(zone / "temp")
        if temperature is not None:
            kinds = (kind for kind in _found(zone, "trip_point_*_type") if system_text(kind) in _SLOWING)
            trips = [_celsius(kind.with_name(kind.name.removesuffix("type") + "temp")) for kind in kinds]
            yield temperature, min((t for t in trips if t is not None), default=None)


def _cooling(root: Path) -> Iterator[str]:
    """Yield which processors are slowed down as cooling devices; fans do not count."""
    for device in _found(root / "class/thermal", "cooling_device*"):
        kind, state = system_text(device / "type"), _number(device / "cur_state") or 0
        if state > 0 and ("cpu" in kind.lower() or kind in ("Processor", "intel_powerclamp")):
            yield f"the CPU is cooled by slowing it down ({kind} {state})"


def _found(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _number(path: Path, base: int = 10) -> int | None:
    text = system_text(path)
    try:
        return int(text, base) if len(text) <= _LONGEST_NUMBER else None
    except ValueError:
        return None


def _celsius(path: Path) -> float | None:
    """Read a temperature in degrees Celsius from a file in thousandths of a degree; None if it is implausible."""
    number = _number(path)
    if number is None or not _SENSIBLE_C[0] <= number / 1000 <= _SENSIBLE_C[1]:
        return None
    return number / 1000
