"""What the process does beside its work, and what it finds out about its machine."""

import contextlib
import gc
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import edge_sdk
from edge_sdk.core.errors import BundleError
from edge_sdk.core.machine import BoardState, BoardWatch, Cores, Cpu, CpuTime, no_collection, read_board
from edge_sdk.core.threads import BackgroundTask, Stop, is_any_left, stopping_on_signals
from edge_sdk.tuning.tuning import TunedMachine
from tests.support import models as tiny
from tests.support.configs import write_files
from tests.support.connections import until
from tests.support.logs import refusal


def _output_of(program: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | environment).stdout


def test_a_hangup_reloads_a_service_alone() -> None:
    for before, reloads, expected in (
        (signal.SIG_DFL, True, (False, True)),
        (signal.SIG_DFL, False, (True, False)),
        (signal.SIG_IGN, True, (False, False)),  # as nohup leaves it
        (signal.SIG_IGN, False, (False, False)),
    ):
        here = signal.signal(signal.SIGHUP, before)
        try:
            with stopping_on_signals(reloads=reloads) as stop:
                os.kill(os.getpid(), signal.SIGHUP)
                assert (stop.is_asked(), stop.reload) == expected
            assert signal.getsignal(signal.SIGHUP) is before
        finally:
            signal.signal(signal.SIGHUP, here)


_SIGNALLED_AT_THE_END = """
import os, signal, sys
from edge_sdk.cli import main

class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=int(sys.argv.pop())):
        kill(pid, number)

sys.last = Last()
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_python_itself_ends_a_run_does_not_change_its_exit_code(number: signal.Signals) -> None:
    """Modules are taken down after Python has put the default actions of signals back."""
    command = [sys.executable, "-c", _SIGNALLED_AT_THE_END, "run", "--help", str(number.value)]
    assert subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_a_part_ends_with_the_whole_and_the_whole_not_with_a_part() -> None:
    whole = Stop()
    part, other = Stop(whole), Stop(whole)
    part.ask("reload")
    assert [each.is_asked() for each in (part, other, whole)] == [True, False, False]
    whole.ask()
    assert other.is_asked()
    assert (part.reason, other.reason) == ("reload", "signal")


def test_the_end_of_python_waits_for_a_thread_that_was_left_behind() -> None:
    program = """
from threading import Thread; from time import sleep; from edge_sdk.core.threads import join_or_leave
thread = Thread(target=lambda: (sleep(0.3), print('done')), daemon=True)
thread.start(); join_or_leave(thread, 0.0)"""
    assert _output_of(program) == "done\n"


def test_no_garbage_is_looked_for_in_what_was_made_inside() -> None:
    before, kept = gc.get_freeze_count(), list[list[int]]()
    with contextlib.suppress(KeyError), no_collection():
        assert not gc.isenabled()
        kept.extend([index] for index in range(1000))
        raise KeyError
    assert gc.isenabled()  # also after an error
    assert gc.get_freeze_count() - before >= len(kept)
    gc.unfreeze()


# Memory that loading a model freed is the system's again, or serves other threads.

_LOAD = """
import re, sys
from pathlib import Path
from edge_sdk.core.machine import give_back_freed
from edge_sdk.inference.session import Session, SessionSettings

def memory():
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

give_back_freed()
before = memory()
session = Session(Path(sys.argv[1]).read_bytes(), SessionSettings(), "m")
print(memory() - before)
"""

_HEAPS = """
import ctypes, sys, threading
from concurrent.futures import ThreadPoolExecutor
from edge_sdk.core.machine import share_one_heap

share_one_heap()
libc, all_here = ctypes.CDLL(None), threading.Barrier(4)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
with ThreadPoolExecutor(4) as threads:
    threads.map(lambda _: (all_here.wait(), libc.malloc(5000), all_here.wait()), range(4))
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries have no heaps of threads and give no memory back"
)


@needs_glibc
def test_threads_share_one_heap(tmp_path: Path) -> None:
    _output_of(_HEAPS, str(tmp_path / "heaps.xml"))
    assert (tmp_path / "heaps.xml").read_text().count("<heap nr=") == 1


@needs_glibc
def test_a_loaded_model_does_not_hold_the_memory_that_reading_it_took(tmp_path: Path) -> None:
    weights = {
        "w1": np.full((64, 3, 3, 3), 0.1, np.float32),
        "w2": np.random.default_rng(0).normal(0, 0.1, (4096, 64, 3, 3)).astype(np.float32),
    }
    nodes = [helper.make_node("Conv", ["images", "w1"], ["a"]), helper.make_node("Conv", ["a", "w2"], ["y"])]
    file = tmp_path / "m.onnx"
    file.write_bytes(tiny.model(nodes, [1, 3, 8, 8], {"y": [1, 4096, 4, 4]}, weights).SerializeToString())
    # ONNX Runtime's Python package keeps the bytes, and its session the weights as its kernels want them.
    assert int(_output_of(_LOAD, str(file))) < 2.6 * file.stat().st_size


def test_the_result_or_the_error_of_a_task_is_for_whoever_takes_it() -> None:
    def fail() -> None:
        raise BundleError("b.edge: altered")

    with BackgroundTask(threading.current_thread, "edge-test") as ahead, BackgroundTask(fail, "edge-test") as failing:
        assert ahead.is_ready()
        assert ahead.take() is not threading.current_thread()
        assert refusal(BundleError, failing.take) == "b.edge: altered"
    assert not is_any_left()


def test_what_nobody_took_is_undone_also_after_the_close() -> None:
    end, undone = threading.Event(), list[int]()
    with BackgroundTask(lambda: 1, "edge-test", undo=undone.append) as ahead:
        assert ahead.is_ready()
    with BackgroundTask(lambda: 2, "edge-test", undo=undone.append) as ahead:
        assert ahead.take() == 2
    with BackgroundTask(lambda: 3 * end.wait(), "edge-test", undo=undone.append) as ahead:
        ahead.close(0)
    assert undone == [1]
    end.set()
    until(lambda: undone == [1, 3])


def test_who_is_told_to_stop_does_not_wait() -> None:
    stop, end = Stop(), threading.Event()
    with BackgroundTask(end.wait, "edge-test") as ahead:
        stop.ask()
        stop.ask("another reason")
        assert not ahead.is_ready(stop.is_asked)
    assert stop.reason == "signal"
    assert is_any_left()
    end.set()
    assert ahead.take()


def test_the_first_model_loads_before_opencv_and_what_speaks_mqtt() -> None:
    code = "import sys, edge_sdk.service.model_selector; print({'cv2', 'paho', 'onnxruntime'} & {*sys.modules})"
    assert _output_of(code) == "{'onnxruntime'}\n"


# OpenCV is whole in every thread, however its imports meet.

_OPENCV = """
import sys, threading, types
package = sys.modules.pop("cv2")
sys.modules["cv2"] = types.ModuleType("cv2")  # the native part, as others may find it
threading.is_halfway.set()
threading.has_looked.wait(0.5)
sys.modules["cv2"] = package
dnn = "all of it"
"""
_PROGRAM = """
import threading
threading.is_halfway, threading.has_looked = threading.Event(), threading.Event()
def look():
    threading.is_halfway.wait()
    from edge_sdk.core.opencv import cv2
    print(getattr(cv2, "dnn", "a part"))
    threading.has_looked.set()
thread = threading.Thread(target=look)
thread.start()
from edge_sdk.core.opencv import cv2
thread.join()
"""


def test_a_thread_that_imports_opencv_while_another_does_gets_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "cv2.py").write_text(_OPENCV)
    assert _output_of(_PROGRAM, PYTHONPATH=str(tmp_path)) == "all of it\n"


def test_one_module_imports_opencv_and_the_others_take_it_from_there() -> None:
    modules = {path: path.read_text() for path in Path(edge_sdk.__file__).parent.rglob("*.py")}
    assert [path.name for path, text in modules.items() if re.search(r"^\s*import cv2", text, re.M)] == ["opencv.py"]


# Cores: physical against logical ones, the affinity mask and the control group's quota.

PAIRS = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
SINGLE = {0: "0", 1: "1", 2: "2", 3: "3"}


def _cores(
    root: Path, siblings: dict[int, str], *, online: str = "0-3", mask: str = "0-3", group: str = "/",
    limits: dict[str, str] | None = None,
) -> Path:  # fmt: skip
    files = {
        "sys/devices/system/cpu/online": online,
        "proc/self/status": f"Name:\tpython\nCpus_allowed:\tf\nCpus_allowed_list:\t{mask}\n",
        "proc/self/cgroup": f"0::{group}\n",
    }
    files |= {f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list": text for cpu, text in siblings.items()}
    files |= {f"sys/fs/cgroup/{folder}/cpu.max": limit for folder, limit in (limits or {}).items()}
    return write_files(root, files)


@pytest.mark.parametrize(
    ("siblings", "changes", "expected"),
    [
        (SINGLE, {}, Cores(4, 4, 4, 4)),
        (PAIRS, {}, Cores(4, 2, 4, 2)),
        ({}, {}, Cores(4, 4, 4, 4)),
        (PAIRS, {"mask": "0,2"}, Cores(4, 2, 2, 1)),
        (SINGLE, {"limits": {"": "250000 100000"}}, Cores(4, 4, 2, 2)),
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
    assert here.usable <= here.physical <= here.logical == count
    assert 1 <= here.usable <= here.allowed <= len(os.sched_getaffinity(0))


# What tells one processor from another, also where Linux has no name for it.

LITTLE = {"implementer": "0x41", "part": "0xd03", "revision": "4", "features": "fp asimd crc32"}
BIG = {**LITTLE, "part": "0xd08", "revision": "3"}


def _arm(*cores: dict[str, str]) -> str:
    """The processor file of an ARM kernel, which has no name of a model."""
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
    return Cpu.read(write_files(root, {"proc/cpuinfo": cpuinfo, "proc/device-tree/model": board}))


def test_a_processor_has_a_name(tmp_path: Path) -> None:
    for cpuinfo, board, expected in (
        (_x86("Intel(R) Xeon(R)", "fpu avx2", 2300), "", "Intel(R) Xeon(R)"),
        (_arm(BIG), "Raspberry Pi 4 Model B\0", "Raspberry Pi 4 Model B"),
        (_arm(LITTLE, LITTLE, BIG), "", f"{os.uname().machine} 0x41/0xd03 + 0x41/0xd08"),
        ("", "", os.uname().machine),
    ):
        assert _cpu(tmp_path, cpuinfo, board).name == expected


def test_boards_with_as_many_cores_are_told_apart_without_a_name(tmp_path: Path) -> None:
    for one, other in (
        (_arm(BIG, BIG), _arm({**BIG, "part": "0xd0b"}, BIG)),
        (_arm(BIG, BIG), _arm({**BIG, "revision": "2"}, BIG)),
        (_arm(BIG), _arm({**BIG, "features": "fp asimd"})),
        (_x86("Xeon", "fpu avx2", 2300), _x86("Xeon", "fpu avx2 avx512_vnni", 2300)),
    ):
        assert _cpu(tmp_path, one).digest != _cpu(tmp_path, other).digest
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
    # user, nice, system, idle, iowait, irq, softirq, steal, and guests, which are in the first two already
    cpus = ("1 2 4 8 16 32 64 128 1000 1000", "0 0 0 0 0 0 0 0 0 0", "9999 0 0 0 0 0 0 0 0 0")
    rows = ["cpu  0 0 0 0 0 0 0 0 0 0", *(f"cpu{n} {times}" for n, times in enumerate(cpus)), "intr 7 0 0", ""]
    found = CpuTime.read(write_files(tmp_path, {"proc/stat": "\n".join(rows)}), cpus=[0, 1])
    ticks = [seconds * os.sysconf("SC_CLK_TCK") for seconds in (found.total_s, found.busy_s)]
    assert ticks == pytest.approx([255, 255 - 24])


def test_the_work_of_others_is_what_is_not_our_own_and_unknown_where_it_is_not_shown(tmp_path: Path) -> None:
    for after, expected in (
        (CpuTime(140, 80, 20), 0.5),
        (CpuTime(140, 55, 20), 0.0),  # ticks are counted late
        (CpuTime(140, 95, 11), 1.0),
        (CpuTime(100, 50, 10), None),
    ):
        assert after.others_since(CpuTime(100, 50, 10)) == expected
    for root in (tmp_path / "none", write_files(tmp_path, {"proc/stat": "cpu 1 2 3"})):
        found = CpuTime.read(root)
        assert (found.others_since(found), found.total_s) == (None, 0)


# What slows the board down.

_PI = "devices/platform/soc/soc:firmware/get_throttled"
_PI_5 = "devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled"
_VOLTAGE = {"class/hwmon/hwmon1/name": "rpi_volt", "class/hwmon/hwmon1/in0_lcrit_alarm": "1"}
_COOLING = {"class/thermal/cooling_device0/type": "cpufreq-cpu0", "class/thermal/cooling_device0/cur_state": "2"}


def _zone(number: int, temp: str, **trips: str) -> dict[str, str]:
    folder = f"class/thermal/thermal_zone{number}"
    files = {f"{folder}/temp": temp}
    for index, (kind, limit) in enumerate(trips.items()):
        files |= {f"{folder}/trip_point_{index}_type": kind, f"{folder}/trip_point_{index}_temp": limit}
    return files


@pytest.mark.parametrize(
    ("files", "throttled", "under_voltage"),
    [
        ({_PI: "0"}, "", False),
        ({_PI_5: "2"}, "the firmware caps the CPU's frequency", False),
        ({_PI: "50005"}, "under-voltage, the firmware throttles", True),
        ({_PI: "f0000"}, "", False),  # it was so once
        ({_PI: "nonsense"}, "", None),
        (_VOLTAGE, "under-voltage", True),
        ({_PI: "0"} | _VOLTAGE, "under-voltage", True),
        (_zone(0, "79000", active="60000", passive="80000", critical="90000"), "", None),
        (_zone(0, "80000", passive="80000", critical="90000"), "80 degrees, slowed down from 80 on", None),
        (_zone(0, "50000", passive="0", critical="-274000"), "", None),
        (_COOLING | {"class/thermal/cooling_device0/cur_state": "0"}, "", None),
        (_COOLING, "the CPU is cooled by slowing it down (cpufreq-cpu0 2)", None),
    ],
)
def test_reasons_for_which_a_board_slows_down(
    tmp_path: Path, files: dict[str, str], throttled: str, under_voltage: bool | None
) -> None:
    state = read_board(write_files(tmp_path, files))
    assert (state.throttled, state.under_voltage) == (throttled, under_voltage)


def test_temperature_is_that_of_the_hottest_zone_and_nonsense_is_unknown(tmp_path: Path) -> None:
    assert read_board(tmp_path) == BoardState()
    for text in ("", "\x00", "-5", "1e9", "9" * 400):
        files = {**_zone(0, text, passive=text), **_COOLING, "class/thermal/cooling_device0/cur_state": "?", _PI: "zz"}
        assert read_board(write_files(tmp_path / "nonsense", files)) == BoardState()
    assert read_board(write_files(tmp_path, {**_zone(0, "51500"), **_zone(1, "61250")})) == BoardState("", 61.25)


def test_the_board_is_read_in_a_thread_of_its_own(tmp_path: Path) -> None:
    watch = BoardWatch(write_files(tmp_path, {_PI: "4"}))
    until(lambda: watch.state.throttled == "the firmware throttles")
    watch.close()
