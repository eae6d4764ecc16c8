"""How machine and process are, and what people are told of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edge_sdk.health.alarms import Alarms
from edge_sdk.health.readings import Gauges, Readings
from edge_sdk.health.watch import HealthWatch

_FILES = {
    "proc/meminfo": "MemTotal: 4000000 kB\nMemAvailable:  2000000 kB",
    "proc/self/statm": "90000 25000 9000 1 0 60000 0",
    "proc/loadavg": "0.52 0.58 0.59 1/467 12345",
    "proc/uptime": "350735.47 234388.90",
    "proc/self/limits": "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024        524288  files",
    "proc/self/fd/0": "",
    "proc/self/fd/1": "",
    "proc/self/fd/17": "",
    "sys/class/thermal/thermal_zone0/temp": "48312",
    "sys/devices/platform/soc/soc:firmware/get_throttled": "50005",
}


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def test_what_the_files_say(tmp_path: Path) -> None:
    readings = Gauges(tmp_path / "not" / "yet", _write(tmp_path, _FILES)).read()
    assert readings.temperature_c == 48.312
    assert readings.throttled == "under-voltage, the firmware throttles"
    assert readings.under_voltage is True
    assert readings.free_memory_mb == 2048.0
    assert readings.memory_mb == 25000 * os.sysconf("SC_PAGE_SIZE") / 1e6
    disk = os.statvfs(tmp_path)
    assert readings.disk_mb == disk.f_blocks * disk.f_frsize / 1e6
    assert readings.disk_free_mb is not None
    assert 0 < readings.disk_free_mb <= readings.disk_mb
    assert readings.load1 == 0.52
    assert (readings.open_files, readings.open_files_limit) == (3, 1024)
    assert readings.uptime_s == 350735.47


def test_this_machine_says_something_of_itself(tmp_path: Path) -> None:
    gauges = Gauges(tmp_path)
    readings = gauges.read()
    assert readings.memory_mb is not None
    assert readings.memory_mb > 10
    assert readings.open_files is not None
    with (tmp_path / "open").open("w"):
        assert gauges.read().open_files == readings.open_files + 1


_TAKEN = """
import resource
from pathlib import Path
from edge_sdk.health.readings import Gauges
gauges = Gauges(None)
gauges.read()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 1000))
readings = gauges.read()
print(readings.open_files, readings.open_files_limit, readings.memory_mb)
"""


def test_a_process_without_a_descriptor_to_count_with_has_them_all() -> None:
    done = subprocess.run([sys.executable, "-c", _TAKEN], capture_output=True, text=True, check=True)
    assert done.stdout == "3 3 None\n"


def test_the_share_is_of_one_core_between_two_readings(tmp_path: Path) -> None:
    clock = iter([100.0, 110.0, 110.0])
    gauges = Gauges(None, tmp_path, lambda: next(clock))
    assert gauges.read().cpu_share is None
    before = time.process_time()
    while time.process_time() - before < 0.3:
        pass
    share = gauges.read().cpu_share
    assert share is not None
    assert 0.02 <= share < 10  # three tenths of a second in ten, to the clock's tick
    assert gauges.read().cpu_share is None  # no time went by


@pytest.mark.parametrize("text", ["", "nonsense", "\xff\xfe", "Max open files unlimited"])
def test_what_makes_no_sense_is_unknown(text: str, tmp_path: Path) -> None:
    _write(tmp_path, {name: text for name in _FILES if "/fd/" not in name})
    assert Gauges(None, tmp_path).read() == Readings(open_files=None)


def test_without_proc_and_sys_all_is_unknown(tmp_path: Path) -> None:
    assert Gauges(None, tmp_path / "none").read() == Readings()
    assert Gauges(Path("/dev/null/below"), tmp_path).read() == Readings()


def _names(alarms: Alarms, **readings: float | bool | None) -> list[tuple[str, bool]]:
    changes = alarms.update(Readings(**readings))  # type: ignore[arg-type]
    return [(name, bool(line)) for name, line in changes]


@pytest.mark.parametrize(
    ("name", "fine", "wrong", "between"),
    [
        ("disk", {"disk_free_mb": 900, "disk_mb": 32000}, {"disk_free_mb": 499}, {"disk_free_mb": 600}),
        ("disk", {"disk_free_mb": 50, "disk_mb": 256}, {"disk_free_mb": 12}, {"disk_free_mb": 15}),
        ("memory", {"free_memory_mb": 200}, {"free_memory_mb": 60}, {"free_memory_mb": 70}),
        ("hot", {"temperature_c": 60}, {"temperature_c": 81}, {"temperature_c": 77}),
        ("open_files", {"open_files": 500, "open_files_limit": 1024}, {"open_files": 900}, {"open_files": 700}),
    ],
)
def test_an_alarm_is_said_once_and_is_over_at_another_level(
    name: str, fine: dict[str, float], wrong: dict[str, float], between: dict[str, float]
) -> None:
    alarms = Alarms()
    assert _names(alarms, **fine) == []
    assert _names(alarms, **fine | between) == []
    assert _names(alarms, **fine | wrong) == [(name, True)]
    assert _names(alarms, **fine | wrong) == []
    assert _names(alarms, **fine | between) == []
    assert _names(alarms) == []  # unknown: nobody says that it is better
    assert _names(alarms, **fine) == [(name, False)]
    assert _names(alarms, **fine | wrong) == [(name, True)]


def test_a_weak_power_supply_is_forgiven_after_a_minute_without() -> None:
    alarms = Alarms()
    assert _names(alarms, under_voltage=True) == [("under_voltage", True)]
    heard = [_names(alarms, under_voltage=weak) for weak in [False] * 5 + [True] + [False] * 5]
    assert not any(heard)
    assert _names(alarms, under_voltage=False) == [("under_voltage", False)]


def test_lines_say_figures_and_what_to_do() -> None:
    lines = dict(Alarms().update(Readings(disk_free_mb=12.3, disk_mb=256, open_files=900, open_files_limit=1024)))
    assert lines["disk"].startswith("the disk is nearly full: 12 MB are free of 256; make room")
    assert lines["open_files"].startswith("900 of 1024 files")


def test_the_watch_reads_and_tells_in_a_thread_of_its_own(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    heard = threading.Event()

    def tell(name: str, line: str) -> None:
        told.append((name, threading.current_thread().name))
        heard.set()

    _write(tmp_path, {"sys/class/thermal/thermal_zone0/temp": "90000"})
    watch = HealthWatch(Gauges(None, tmp_path), tell, interval_s=0.01)
    assert heard.wait(60)
    assert told[0] == ("hot", "edge-health")
    assert watch.readings.temperature_c == 90.0
    heard.clear()
    _write(tmp_path, {"sys/class/thermal/thermal_zone0/temp": "40000"})
    assert heard.wait(60)
    watch.close()
