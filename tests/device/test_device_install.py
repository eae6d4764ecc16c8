"""Every device module works where the workstation's packages are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import importlib, pkgutil, sys
for name in ("onnx", "rich", "torch", "matplotlib", "sympy", "edge_sdk_tools", "amqtt"):
    sys.modules[name] = None  # importing it raises ImportError, as where it is not installed
import edge_sdk
names = [m.name for m in pkgutil.walk_packages(edge_sdk.__path__, "edge_sdk.") if m.name != "edge_sdk.__main__"]
for name in names:
    importlib.import_module(name)
print(len(names))
from edge_sdk.cli.root import run
sys.exit(run(["build", "model.toml", "--target", "arm64"]))
"""


def test_all_modules_import_and_host_verbs_say_what_is_missing() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert int(done.stdout) > 40
    assert done.returncode == 8
    assert done.stderr.count("\n") == 1
    assert "pip install -c constraints.txt '.[host]'" in done.stderr


def test_threads_of_opencv_are_told_not_to_burn_cores_before_it_is_loaded() -> None:
    name = "OPENCV_THREAD_POOL_ACTIVE_WAIT_WORKER"
    program = f"import sys, os, edge_sdk; print('cv2' in sys.modules, os.environ['{name}'])"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENCV_")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "False 0\n"


@pytest.mark.parametrize("module", ["edge_sdk.session", "edge_sdk_tools.build"])
def test_importing_leaves_no_telemetry_behind(tmp_path: Path, module: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment.update(HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, env=environment)
    assert list(tmp_path.rglob("*")) == []
