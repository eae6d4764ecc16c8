"""The board's state, read from a /sys made in the test."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from edge_sdk.throttling import BoardState, BoardWatch, read_board

_PI = "devices/platform/soc/soc:firmware/get_throttled"
_PI_5 = "devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled"


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def _core(number: int, current: str, highest: str = "1800000", governor: str = "ondemand") -> dict[str, str]:
    folder = f"devices/system/cpu/cpu{number}/cpufreq"
    return {
        f"{folder}/scaling_cur_freq": current,
        f"{folder}/cpuinfo_max_freq": highest,
        f"{folder}/scaling_governor": governor,
    }


def _zone(number: int, temp: str, **trips: str) -> dict[str, str]:
    folder = f"class/thermal/thermal_zone{number}"
    files = {f"{folder}/temp": temp}
    for index, (kind, limit) in enumerate(trips.items()):
        files |= {f"{folder}/trip_point_{index}_type": kind, f"{folder}/trip_point_{index}_temp": limit}
    return files


def _cooling(kind: str, state: str) -> dict[str, str]:
    return {"class/thermal/cooling_device0/type": kind, "class/thermal/cooling_device0/cur_state": state}


def test_without_any_file_all_is_unknown(tmp_path: Path) -> None:
    assert read_board(tmp_path) == BoardState("", None, None)
    assert read_board(tmp_path / "none") == BoardState()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({_PI: "0"}, ""),
        ({_PI: "1"}, "under-voltage"),
        ({_PI: "4"}, "the firmware throttles"),
        ({_PI_5: "2"}, "the firmware caps the CPU's frequency"),
        ({_PI: "8"}, "the soft temperature limit is reached"),
        ({_PI: "50005"}, "under-voltage, the firmware throttles"),
        ({_PI: "f0000"}, ""),  # it was so once
        (_zone(0, "79000", active="60000", passive="80000", critical="90000"), ""),
        (_zone(0, "80000", active="60000", passive="80000", critical="90000"), "80 degrees, slowed down from 80 on"),
        (_zone(0, "91000", critical="90000"), "91 degrees, slowed down from 90 on"),
        (_zone(0, "50000", passive="0", critical="-274000"), ""),
        (_zone(0, "50000", active="40000"), ""),  # a fan turns
        (_cooling("pwm-fan", "3"), ""),
        (_cooling("cpufreq-cpu0", "0"), ""),
        (_cooling("cpufreq-cpu0", "2"), "the CPU is cooled by slowing it down (cpufreq-cpu0 2)"),
        (_cooling("thermal-cpufreq-0", "1"), "the CPU is cooled by slowing it down (thermal-cpufreq-0 1)"),
        (_cooling("Processor", "1"), "the CPU is cooled by slowing it down (Processor 1)"),
        (_cooling("intel_powerclamp", "-1"), ""),
        (_core(0, "600000"), ""),  # nothing to do
        (_core(0, "600000", governor="performance"), "a core runs at 33% of its speed"),
        (_core(0, "1700000", governor="performance"), ""),
    ],
)
def test_what_slows_a_board_down(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    assert read_board(_write(tmp_path, files)).throttled == expected


def test_temperature_is_the_hottest_zones_and_speed_the_slowest_cores(tmp_path: Path) -> None:
    files = {**_zone(0, "51500"), **_zone(1, "61250"), **_core(0, "1800000"), **_core(3, "900000")}
    assert read_board(_write(tmp_path, files)) == BoardState("", 61.25, 0.5)


@pytest.mark.parametrize("text", ["", "unavailable", "\x00", "-5", "0", "1e9", "9" * 400])
def test_nonsense_is_unknown(tmp_path: Path, text: str) -> None:
    files = {**_zone(0, text, passive=text), **_core(0, text), **_cooling("cpufreq-cpu0", "?"), _PI: "zz"}
    state = read_board(_write(tmp_path, files))
    assert (state.throttled, state.temperature_c, state.speed) == ("", None, None)
    (tmp_path / _PI).write_bytes(b"\xff\xfe")
    assert read_board(tmp_path).throttled == ""


def test_it_is_read_in_a_thread_of_its_own_and_a_file_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    _write(tmp_path, {_PI: "4"})
    watch = BoardWatch(tmp_path)
    deadline = time.monotonic() + 30
    while not watch.state.throttled and time.monotonic() < deadline:
        time.sleep(0.01)
    assert watch.state.throttled == "the firmware throttles"
    (tmp_path / _PI).unlink()
    os.mkfifo(tmp_path / _PI)
    writer = None
    while writer is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # until the thread has opened it, and waits for what is written
            writer = os.open(tmp_path / _PI, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)
    assert writer is not None
    assert watch.state.throttled == "the firmware throttles"
    watch.close()
    os.close(writer)


_SENSOR = "class/hwmon/hwmon1"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({_PI: "0"}, False),
        ({_PI: "50000"}, False),
        ({_PI: "1"}, True),
        ({_PI: "nonsense"}, None),
        ({f"{_SENSOR}/name": "rpi_volt", f"{_SENSOR}/in0_lcrit_alarm": "1"}, True),
        ({f"{_SENSOR}/name": "rpi_volt", f"{_SENSOR}/in0_lcrit_alarm": "0"}, False),
        ({f"{_SENSOR}/name": "coretemp", f"{_SENSOR}/in0_lcrit_alarm": "1"}, None),
        ({f"{_SENSOR}/name": "rpi_volt"}, None),
        ({_PI: "0", f"{_SENSOR}/name": "rpi_volt", f"{_SENSOR}/in0_lcrit_alarm": "1"}, True),
    ],
)
def test_a_power_supply_that_is_too_weak_is_told_by_either_who_watches_it(
    files: dict[str, str], expected: bool | None, tmp_path: Path
) -> None:
    state = read_board(_write(tmp_path, files))
    assert state.under_voltage is expected
    assert state.throttled == ("under-voltage" if expected else "")
