"""A build without memory says so in one line; one that is killed leaves nothing behind, and the old bundle there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.errors import ModelError
from edge_sdk.want_of_memory import is_want_of_memory
from edge_sdk_tools.build import build
from tests.host.projects import write_project

_PROGRAM = """
import resource, sys
from edge_sdk.cli.root import run
import edge_sdk_tools.build, edge_sdk_tools.progress
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]) * 10**6,) * 2)
sys.exit(run(sys.argv[2:]))
"""
_WHOLE = "import resource, sys; from edge_sdk.cli.root import run; size = int(sys.argv[1]) * 10**6;" + (
    "resource.setrlimit(resource.RLIMIT_AS, (size, size)); sys.exit(run(sys.argv[2:]))"
)


@pytest.mark.parametrize(
    ("program", "megabytes"),
    [(_WHOLE, 300), (_PROGRAM, 3), (_PROGRAM, 40)],
    ids=["while importing", "at once", "on the way"],
)
def test_want_of_memory_is_one_line(tmp_path: Path, program: str, megabytes: int) -> None:
    model, output = write_project(tmp_path, pictures=16), tmp_path / "a.edge"
    arguments = [str(megabytes), "build", str(model), "--target", "x86_64", "-o", str(output)]
    # Measuring coverage takes memory too; OpenBLAS takes some for every core, and ends the process where it gets none.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stderr
    assert "edge-sdk: out of memory: " in done.stderr or "OpenBLAS error: Memory allocation" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    _gone(tmp_path)
    assert not output.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_build_that_dies_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    model, output = write_project(tmp_path, pictures=300), tmp_path / "a.edge"
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_sdk", "build", str(model), "--target", "x86_64", "-o", str(output)],
        stderr=subprocess.DEVNULL,
    )
    try:
        while process.poll() is None and not list(tmp_path.glob(".a.edge.building-*/work/*")):
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(60) == -number
    finally:
        process.kill()
    _gone(tmp_path)
    assert not output.exists()


def test_what_dies_between_the_renames_gives_the_old_bundle_back(tmp_path: Path) -> None:
    model, output = write_project(tmp_path), tmp_path / "a.edge"
    build(model, "x86_64", output, bundle_version=1)
    program = (
        "import os, sys; from pathlib import Path; from edge_sdk_tools.janitor import janitor;"
        "folder, output = Path(sys.argv[1]), Path(sys.argv[2]);"
        "guard = janitor(folder, folder / 'old', output); guard.__enter__();"
        "output.rename(folder / 'old'); os._exit(9)"
    )
    partial = tmp_path / ".a.edge.building-1"
    partial.mkdir()
    assert subprocess.run([sys.executable, "-c", program, str(partial), str(output)], check=False).returncode == 9
    _gone(tmp_path)
    assert Bundle.open(output).manifest.version == 1


def _gone(folder: Path) -> None:
    """The janitor takes a moment; without it this waits in vain."""
    deadline = time.monotonic() + 60
    while list(folder.glob(".a.edge*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not list(folder.glob(".a.edge*"))


def _caused(cause: BaseException) -> ModelError:
    error = ModelError("quantization failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (_caused(MemoryError()), True),
        (_caused(RuntimeError("[ONNXRuntimeError] : 1 : FAIL : std::bad_alloc")), True),
        (ImportError("libx.so: failed to map segment from shared object"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (_caused(ValueError("no such shape")), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_want_of_memory_is_known_in_any_words(error: BaseException, expected: bool) -> None:
    assert is_want_of_memory(error) is expected
