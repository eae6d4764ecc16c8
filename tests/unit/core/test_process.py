"""What the process does beside its work: signals, background tasks, threads left behind, garbage, freed memory."""

from __future__ import annotations

import gc
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from onnx import helper

from edge_sdk.core import threads
from edge_sdk.core.errors import BundleError
from edge_sdk.core.machine import no_collection
from edge_sdk.core.threads import BackgroundTask, Stop, is_any_left, stopping_on_signals
from tests.support import models as tiny


@pytest.fixture
def _hangup() -> Iterator[None]:
    """SIGHUP as a program has it that was started without nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_hangup")
def test_the_hangup_of_a_service_asks_for_a_reload_and_the_signal_is_given_back() -> None:
    with stopping_on_signals(reloads=True) as stop:
        assert not stop.reload
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.reload
        assert not stop.is_asked()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


@pytest.mark.usefixtures("_hangup")
def test_without_a_service_the_end_of_the_terminal_ends_the_program_unless_it_is_ignored() -> None:
    for handler in (signal.SIG_DFL, signal.SIG_IGN):
        signal.signal(signal.SIGHUP, handler)
        with stopping_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert (stop.is_asked(), stop.reload) == (handler is signal.SIG_DFL, False)


@pytest.mark.parametrize("reloads", [False, True])
def test_under_nohup_a_hangup_neither_ends_a_run_nor_reloads(reloads: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping_on_signals(reloads=reloads) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_asked()
            assert not stop.reload
    finally:
        signal.signal(signal.SIGHUP, before)


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


def test_a_thread_that_was_left_behind_is_forgotten_with_the_next_once_it_has_ended() -> None:
    before, ends = [*threads._threads], [Event() for _ in range(3)]
    running = [Thread(target=end.wait, daemon=True) for end in ends]
    for thread, end in zip(running, ends, strict=True):
        thread.start()
        threads.join_or_leave(thread, 0.0)
        assert threads.is_any_left()
        assert thread in threads._threads
        end.set()
        thread.join()
    assert [thread for thread in threads._threads if thread not in before] == running[-1:]
    in_time = Thread(target=lambda: None)
    in_time.start()
    threads.join_or_leave(in_time, 10.0)
    assert in_time not in threads._threads


@pytest.fixture
def _collecting() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("_collecting")
def test_the_end_of_python_waits_for_a_thread_that_was_left_behind() -> None:
    program = (
        "from threading import Thread; from time import sleep; from edge_sdk.core.threads import join_or_leave\n"
        "thread = Thread(target=lambda: (sleep(0.3), print('done')), daemon=True)\n"
        "thread.start(); join_or_leave(thread, 0.0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "done\n"


def test_no_garbage_is_looked_for_in_what_was_made_inside() -> None:
    before, kept = gc.get_freeze_count(), list[list[int]]()

    def load() -> None:
        with no_collection():
            assert not gc.isenabled()
            kept.extend([index] for index in range(1000))
            raise KeyError

    with pytest.raises(KeyError):
        load()
    assert gc.isenabled()  # also after an error
    assert gc.get_freeze_count() - before >= len(kept)
    gc.disable()
    with no_collection():
        pass
    assert not gc.isenabled()  # it stays off where it was off


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

if sys.argv[1] == "one":
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
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries have no heaps of threads and give no memory back"
)


@needs_glibc
@pytest.mark.parametrize(("how", "is_one"), [("one", True), ("each its own", False)])
def test_threads_share_one_heap(how: str, is_one: bool, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _HEAPS, how, str(tmp_path / "heaps.xml")], check=True)
    heaps = (tmp_path / "heaps.xml").read_text().count("<heap nr=")
    assert (heaps == 1) is is_one


@needs_glibc
def test_a_loaded_model_does_not_hold_the_memory_that_reading_it_took(tmp_path: Path) -> None:
    weights = {
        "w1": np.full((64, 3, 3, 3), 0.1, np.float32),
        "w2": np.random.default_rng(0).normal(0, 0.1, (4096, 64, 3, 3)).astype(np.float32),
    }
    nodes = [helper.make_node("Conv", ["images", "w1"], ["a"]), helper.make_node("Conv", ["a", "w2"], ["y"])]
    file = tmp_path / "m.onnx"
    file.write_bytes(tiny.model(nodes, [1, 3, 8, 8], {"y": [1, 4096, 4, 4]}, weights).SerializeToString())
    done = subprocess.run([sys.executable, "-c", _LOAD, str(file)], capture_output=True, text=True, check=True)
    # ONNX Runtime's Python package keeps the bytes, and its session the weights as its kernels want them.
    assert int(done.stdout) < 2.6 * file.stat().st_size


def test_what_comes_of_it_is_taken_once() -> None:
    thread: list[threading.Thread] = []

    def work() -> list[int]:
        thread.append(threading.current_thread())
        return [1]

    with BackgroundTask(work, "edge-test") as ahead:
        assert ahead.is_ready()
        assert ahead.take() == [1]
    assert thread[0] is not threading.current_thread()
    assert not is_any_left()


def test_what_goes_wrong_goes_wrong_for_who_takes_it() -> None:
    def fail() -> None:
        raise BundleError("b.edge: altered")

    with BackgroundTask(fail, "edge-test") as ahead:
        assert ahead.is_ready()
        with pytest.raises(BundleError, match=r"^b\.edge: altered$"):
            ahead.take()


def test_what_nobody_took_is_undone() -> None:
    undone: list[int] = []
    with BackgroundTask(lambda: 1, "edge-test", undo=undone.append) as ahead:
        assert ahead.is_ready()
    with BackgroundTask(lambda: 2, "edge-test", undo=undone.append) as ahead:
        assert ahead.take() == 2
    assert undone == [1]


def test_a_result_that_comes_after_the_close_is_undone() -> None:
    end, undone = threading.Event(), threading.Event()
    with BackgroundTask(end.wait, "edge-test", undo=lambda _: undone.set()) as ahead:
        ahead.close(0)
    assert not undone.is_set()
    end.set()
    assert undone.wait(10)


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
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "{'onnxruntime'}"
