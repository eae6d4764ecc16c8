"""What the process does beside its work: signals, background tasks, threads left behind, garbage, memory, imports."""

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

import numpy as np
import pytest
from onnx import helper

import edge_sdk
from edge_sdk.core.errors import BundleError
from edge_sdk.core.machine import no_collection
from edge_sdk.core.threads import BackgroundTask, Stop, is_any_left, stopping_on_signals
from tests.support import models as tiny
from tests.support.connections import until


def _output_of(program: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | environment).stdout


@pytest.mark.parametrize(
    ("before", "reloads", "expected"),
    [
        (signal.SIG_DFL, True, (False, True)),
        (signal.SIG_DFL, False, (True, False)),
        (signal.SIG_IGN, True, (False, False)),  # as nohup leaves it
        (signal.SIG_IGN, False, (False, False)),
    ],
)
def test_a_hangup_reloads_a_service_alone(before: signal.Handlers, reloads: bool, expected: tuple[bool, bool]) -> None:
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
    assert part.is_asked()
    assert not other.is_asked()
    assert not whole.is_asked()
    whole.ask()
    assert other.is_asked()
    assert (part.reason, other.reason) == ("reload", "signal")


def test_the_end_of_python_waits_for_a_thread_that_was_left_behind() -> None:
    program = (
        "from threading import Thread; from time import sleep; from edge_sdk.core.threads import join_or_leave\n"
        "thread = Thread(target=lambda: (sleep(0.3), print('done')), daemon=True)\n"
        "thread.start(); join_or_leave(thread, 0.0)"
    )
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
from edge_sdk.core.machine import share_one_heap

share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
all_here = threading.Barrier(4)

def work():
    all_here.wait()
    libc.malloc(5000)
    all_here.wait()

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
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
        with pytest.raises(BundleError, match=r"^b\.edge: altered$"):
            failing.take()
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
    """Otherwise nothing is left to be loaded beside it."""
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
