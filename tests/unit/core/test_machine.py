"""What this machine is and does: cores, processor, the work of other programs, and what slows its board down."""

import os
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.core.machine import BoardState, BoardWatch, Cores, Cpu, CpuTime, read_board
from edge_sdk.tuning.tuning import TunedMachine
from tests.support.connections import until


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text if text.endswith("\0") else text + "\n")
    return root


# Cores: physical against logical ones, the affinity mask and the control group's quota.

PAIRS = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
SINGLE = {0: "0", 1: "1", 2: "2", 3: "3"}


def _cores(
    root: Path,
    siblings: dict[int, str],
    *,
    online: str = "0-3",
    mask: str = "0-3",
    group: str = "/",
    limits: dict[str, str] | None = None,
) -> Path:
    files = {
        "sys/devices/system/cpu/online": online,
        "proc/self/status": f"Name:\tpython\nCpus_allowed:\tf\nCpus_allowed_list:\t{mask}\n",
        "proc/self/cgroup": f"0::{group}\n",
    }
    files |= {f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list": text for cpu, text in siblings.items()}
    files |= {f"sys/fs/cgroup/{folder}/cpu.max": limit for folder, limit in (limits or {}).items()}
    return _write(root, files)


@pytest.mark.parametrize(
    ("siblings", "changes", "expected"),
    [
        (SINGLE, {}, Cores(4, 4, 4, 4)),
        (PAIRS, {}, Cores(4, 2, 4, 2)),
        ({}, {}, Cores(4, 4, 4, 4)),
        (SINGLE, {"online": "0,2-3"}, Cores(3, 3, 3, 3)),
        (PAIRS, {"mask": "0,2"}, Cores(4, 2, 2, 1)),
        (PAIRS, {"mask": "8-11"}, Cores(4, 2, 4, 2)),
        (SINGLE, {"limits": {"": "250000 100000"}}, Cores(4, 4, 2, 2)),
        (SINGLE, {"limits": {"": "50000 100000"}}, Cores(4, 4, 1, 1)),
        (SINGLE, {"group": "/a/b", "limits": {"": "max 1", "a": "300000 100000", "a/b": "max 1"}}, Cores(4, 4, 3, 3)),
        (SINGLE, {"group": "/a/b", "limits": {"a/c": "100000 100000"}}, Cores(4, 4, 4, 4)),
    ],
)
def test_cores_that_a_machine_has_and_a_process_may_use(
    tmp_path: Path, siblings: dict[int, str], changes: dict[str, Any], expected: Cores
) -> None:
    assert Cores.read(_cores(tmp_path, siblings, **changes)) == expected


def test_where_files_say_nothing_of_cores_all_of_this_machine_count(tmp_path: Path) -> None:
    _cores(tmp_path, {})
    count = os.cpu_count()
    for damage in (b"", b"0-", b"\xff\xfe"):
        for path in ("sys/devices/system/cpu/online", "proc/self/status", "proc/self/cgroup"):
            (tmp_path / path).write_bytes(damage)
        assert Cores.read(tmp_path) == Cores(count, count, count, count)
    here = Cores.read()
    assert here.logical == count
    assert 1 <= here.usable <= here.allowed <= len(os.sched_getaffinity(0))
    assert here.usable <= here.physical <= here.logical


# What tells one processor from another, also where Linux has no name for it.

LITTLE = {"implementer": "0x41", "part": "0xd03", "revision": "4", "features": "fp asimd crc32"}
BIG = {**LITTLE, "part": "0xd08", "revision": "3"}


def _arm(*cores: dict[str, str]) -> str:
    """As an ARM kernel has it: no name anywhere."""
    blocks = [
        f"processor\t: {number}\nBogoMIPS\t: {100 + number}.00\nFeatures\t: {core['features']}\n"
        f"CPU implementer\t: {core['implementer']}\nCPU architecture: 8\nCPU variant\t: 0x0\n"
        f"CPU part\t: {core['part']}\nCPU revision\t: {core['revision']}\n\n"
        for number, core in enumerate(cores)
    ]
    return "".join(blocks) + f"Serial\t\t: {os.urandom(8).hex()}\n"


def _x86(model_name: str, flags: str, mhz: float) -> str:
    return (
        f"processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 207\nmodel name\t: {model_name}\nmicrocode\t: {mhz}\n"
        f"cpu MHz\t\t: {mhz}\nflags\t\t: {flags}\n\n"
    )


def _cpu(root: Path, cpuinfo: str = "", board: str = "") -> Cpu:
    return Cpu.read(_write(root, {"proc/cpuinfo": cpuinfo, "proc/device-tree/model": board}))


@pytest.mark.parametrize(
    ("cpuinfo", "board", "expected"),
    [
        (_x86("Intel(R) Xeon(R)", "fpu avx2", 2300), "", "Intel(R) Xeon(R)"),
        (_arm(BIG), "Raspberry Pi 4 Model B\0", "Raspberry Pi 4 Model B"),
        (_arm(LITTLE, LITTLE, BIG), "", f"{os.uname().machine} 0x41/0xd03 + 0x41/0xd08"),
        ("", "", os.uname().machine),
    ],
)
def test_a_processor_has_a_name(tmp_path: Path, cpuinfo: str, board: str, expected: str) -> None:
    assert _cpu(tmp_path, cpuinfo, board).name == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_arm(BIG, BIG), _arm({**BIG, "part": "0xd0b"}, BIG)),
        (_arm(BIG, BIG), _arm({**BIG, "revision": "2"}, BIG)),
        (_arm(BIG), _arm({**BIG, "features": "fp asimd"})),
        (_x86("Xeon", "fpu avx2", 2300), _x86("Xeon", "fpu avx2 avx512_vnni", 2300)),
    ],
)
def test_boards_with_as_many_cores_are_told_apart_without_a_name(tmp_path: Path, one: str, other: str) -> None:
    first, second = _cpu(tmp_path, one), _cpu(tmp_path, other)
    assert first.digest != second.digest
    here = TunedMachine.here(tmp_path)
    assert here == TunedMachine.here(tmp_path)
    _cpu(tmp_path, one)
    assert here != TunedMachine.here(tmp_path)


def test_one_board_is_itself_whatever_its_clock_and_the_order_of_its_cores(tmp_path: Path) -> None:
    assert _cpu(tmp_path, _arm(LITTLE, BIG)) == _cpu(tmp_path, _arm(BIG, LITTLE, LITTLE))
    assert _cpu(tmp_path, _x86("Xeon", "fpu", 2300)) == _cpu(tmp_path, _x86("Xeon", "fpu", 800))
    assert _cpu(tmp_path, _arm(BIG), "a board") != _cpu(tmp_path, _arm(BIG), "another board")
    assert len(Cpu.read().digest) == 64


# Work of other programs, told from that of this one.


def test_processors_are_busy_but_for_what_they_idle_or_wait(tmp_path: Path) -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    # user, nice, system, idle, iowait, irq, softirq, steal, and guests, which are in the first two already
    cpus = ("1 2 4 8 16 32 64 128 1000 1000", "0 0 0 0 0 0 0 0 0 0", "9999 0 0 0 0 0 0 0 0 0")
    rows = [
        "cpu  0 0 0 0 0 0 0 0 0 0",
        *(f"cpu{n} {times}" for n, times in enumerate(cpus)),
        "intr 7 0 0",
        "",
        "btime 1",
    ]
    found = CpuTime.read(_write(tmp_path, {"proc/stat": "\n".join(rows)}), cpus=[0, 1])
    assert found.total_s == pytest.approx(255 / hertz)
    assert found.busy_s == pytest.approx((255 - 24) / hertz)


def test_the_work_of_others_is_what_is_not_our_own_and_unknown_where_it_is_not_shown(tmp_path: Path) -> None:
    for after, expected in (
        (CpuTime(140, 80, 20), 0.5),
        (CpuTime(140, 55, 20), 0.0),  # ticks are counted late
        (CpuTime(140, 95, 11), 1.0),
        (CpuTime(100, 50, 10), None),
    ):
        assert after.others_since(CpuTime(100, 50, 10)) == expected
    for root in (tmp_path / "none", _write(tmp_path, {"proc/stat": "cpu 1 2 3"})):
        found = CpuTime.read(root)
        assert (found.others_since(found), found.total_s) == (None, 0)


# What slows the board down.

_PI = "devices/platform/soc/soc:firmware/get_throttled"
_PI_5 = "devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled"
_SENSOR = "class/hwmon/hwmon1"


def _zone(number: int, temp: str, **trips: str) -> dict[str, str]:
    folder = f"class/thermal/thermal_zone{number}"
    files = {f"{folder}/temp": temp}
    for index, (kind, limit) in enumerate(trips.items()):
        files |= {f"{folder}/trip_point_{index}_type": kind, f"{folder}/trip_point_{index}_temp": limit}
    return files


def _cooling(kind: str, state: str) -> dict[str, str]:
    return {"class/thermal/cooling_device0/type": kind, "class/thermal/cooling_device0/cur_state": state}


def _voltage(name: str, alarm: str) -> dict[str, str]:
    return {f"{_SENSOR}/name": name, f"{_SENSOR}/in0_lcrit_alarm": alarm}


@pytest.mark.parametrize(
    ("files", "throttled", "under_voltage"),
    [
        ({_PI: "0"}, "", False),
        ({_PI_5: "2"}, "the firmware caps the CPU's frequency", False),
        ({_PI: "50005"}, "under-voltage, the firmware throttles", True),
        ({_PI: "f0000"}, "", False),  # it was so once
        ({_PI: "nonsense"}, "", None),
        (_voltage("rpi_volt", "1"), "under-voltage", True),
        (_voltage("rpi_volt", "0"), "", False),
        ({_PI: "0"} | _voltage("rpi_volt", "1"), "under-voltage", True),
        (_zone(0, "79000", active="60000", passive="80000", critical="90000"), "", None),
        (_zone(0, "80000", passive="80000", critical="90000"), "80 degrees, slowed down from 80 on", None),
        (_zone(0, "50000", passive="0", critical="-274000"), "", None),
        (_cooling("pwm-fan", "3"), "", None),
        (_cooling("cpufreq-cpu0", "0"), "", None),
        (_cooling("cpufreq-cpu0", "2"), "the CPU is cooled by slowing it down (cpufreq-cpu0 2)", None),
    ],
)
def test_reasons_for_which_a_board_slows_down(
    tmp_path: Path, files: dict[str, str], throttled: str, under_voltage: bool | None
) -> None:
    state = read_board(_write(tmp_path, files))
    assert (state.throttled, state.under_voltage) == (throttled, under_voltage)


def test_temperature_is_that_of_the_hottest_zone_and_nonsense_is_unknown(tmp_path: Path) -> None:
    assert read_board(tmp_path) == BoardState()
    for text in ("", "\x00", "-5", "1e9", "9" * 400):
        files = {**_zone(0, text, passive=text), **_cooling("cpufreq-cpu0", "?"), _PI: "zz"}
        assert read_board(_write(tmp_path / "nonsense", files)) == BoardState()
    assert read_board(_write(tmp_path, {**_zone(0, "51500"), **_zone(1, "61250")})) == BoardState("", 61.25)


def test_the_board_is_read_in_a_thread_of_its_own(tmp_path: Path) -> None:
    watch = BoardWatch(_write(tmp_path, {_PI: "4"}))
    until(lambda: watch.state.throttled == "the firmware throttles")
    watch.close()
