"""Read from /sys whether the board slows itself down because it is hot or short of power.

A value that is missing, unreadable or implausible counts as unknown, never as an error. `BoardWatch` reads in a thread
of its own, because a read of /sys asks a driver and may take long.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from edge_sdk.core.files import system_text
from edge_sdk.core.threads import Periodic

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
_FULL_SPEED = 0.8  # share of the highest frequency; below it a core with the governor `performance` is held back
_LONGEST_NUMBER = 20  # digits of a 64-bit number
_SENSIBLE_C = (1.0, 200.0)  # zones without a trip point report 0 or the lowest number


class BoardState(msgspec.Struct, frozen=True):
    """The board's own report: throttling, low voltage and temperature.

    Attributes:
        throttled: why the board slows itself down now, for people; empty if it does not, or if unknown.
        temperature_c: temperature of the hottest zone in degrees Celsius; None: unknown.
        speed: lowest ratio, over all cores, of the present to the highest frequency, 0-1; None: unknown. An idle core
            runs slowly by choice.
        under_voltage: whether the power supply is too weak now; None: unknown.
    """

    throttled: str = ""
    temperature_c: float | None = None
    speed: float | None = None
    under_voltage: bool | None = None


def read_board(root: Path = _ROOT) -> BoardState:
    """Read the present state of the board."""
    zones = list(_zones(root))
    flags = [bits for file in _found(root / "devices/platform", _FIRMWARE) if (bits := _number(file, 16)) is not None]
    firmware = [text for bits in flags for bit, text in _FIRMWARE_BITS.items() if bits >> bit & 1]
    voltages = [*(bool(bits >> _UNDER_VOLTAGE & 1) for bits in flags), *_voltage_alarms(root)]
    low = [_FIRMWARE_BITS[_UNDER_VOLTAGE]] if any(voltages) else []
    reasons = [*low, *firmware, *_hot(zones), *_cooling(root), *_held_back(root)]
    speeds = [speed for speed, _ in _cores(root)]
    return BoardState(
        throttled=", ".join(dict.fromkeys(reasons)),
        temperature_c=max((temperature for temperature, _ in zones), default=None),
        speed=min(speeds, default=None),
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


def _hot(zones: list[tuple[float, float | None]]) -> Iterator[str]:
    return (
        f"{temperature:.0f} degrees, slowed down from {limit:.0f} on"
        for temperature, limit in zones
        if limit is not None and temperature >= limit
    )


def _cooling(root: Path) -> Iterator[str]:
    """Yield which processors are slowed down as cooling devices; fans do not count."""
    for device in _found(root / "class/thermal", "cooling_device*"):
        kind, state = system_text(device / "type"), _number(device / "cur_state") or 0
        if state > 0 and ("cpu" in kind.lower() or kind in ("Processor", "intel_powerclamp")):
            yield f"the CPU is cooled by slowing it down ({kind} {state})"


def _cores(root: Path) -> Iterator[tuple[float, str]]:
    """Yield the ratio of each core's frequency to its highest, 0-1, and the name of its governor."""
    for policy in _found(root / "devices/system/cpu", "cpu[0-9]*/cpufreq"):
        current, highest = _number(policy / "scaling_cur_freq"), _number(policy / "cpuinfo_max_freq")
        if current and highest and current > 0 and highest > 0:
            yield min(1.0, current / highest), system_text(policy / "scaling_governor")


def _held_back(root: Path) -> Iterator[str]:
    """Yield the slowest of the cores that run slowly although their governor is `performance`."""
    slow = [speed for speed, governor in _cores(root) if governor == "performance" and speed < _FULL_SPEED]
    return (f"a core runs at {speed:.0%} of its speed" for speed in sorted(slow)[:1])


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
