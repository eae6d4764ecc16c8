"""OpenCV is whole in every thread, however its imports meet, and it is not loaded before it is needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import edge_sdk

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


def _output_of(program: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return run.stdout.strip()


def test_a_thread_that_imports_opencv_while_another_does_gets_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "cv2.py").write_text(_OPENCV)
    assert _output_of(_PROGRAM, PYTHONPATH=str(tmp_path)) == "all of it"


def test_one_module_imports_opencv_and_the_others_take_it_from_there() -> None:
    modules = {path: path.read_text() for path in Path(edge_sdk.__file__).parent.rglob("*.py")}
    assert [path.name for path, text in modules.items() if re.search(r"^\s*import cv2", text, re.M)] == ["opencv.py"]
