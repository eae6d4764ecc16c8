"""What loading a model freed is the system's again, or serves other threads."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.device import tiny

_LOAD = """
import re, sys
from pathlib import Path
from edge_sdk.heap import give_back_freed
from edge_sdk.session import Session, SessionSettings

def memory():
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

give_back_freed()
before = memory()
session = Session(Path(sys.argv[1]).read_bytes(), SessionSettings(), "m")
print(memory() - before)
"""

_HEAPS = """
import ctypes, sys, threading
from edge_sdk.heap import share_one_heap

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
def test_a_loaded_model_does_not_hold_what_reading_it_took(tmp_path: Path) -> None:
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
