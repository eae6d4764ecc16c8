"""The limited process: what it gives, what it keeps back, and what is said when it dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edge_sdk.cli.root import run
from edge_sdk.errors import MissingDependencyError, ModelError
from edge_sdk_tools.check.limited import Limits, run_limited
from tests.support.projects import write_project

_LIMITS = Limits(memory_mb=300, cpu_s=2, wall_s=200)
_PROGRAM = """
import os, sys, time
from edge_sdk_tools.check import limited
from edge_sdk_tools.check.limited import read_request, write_answer
{before}
request = read_request().decode()
{what}
write_answer(request.upper().encode())
"""


def _run(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch, limits: Limits = _LIMITS, before: str = ""
) -> bytes:
    (tmp_path / "program.py").write_text(_PROGRAM.format(what=what, before=before))
    # A second program of the same size in the same second would be taken for the first, by its compiled file.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.syspath_prepend(str(tmp_path))
    return run_limited("program", b"request", limits)


def test_a_process_that_behaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(tmp_path, "pass", monkeypatch) == b"REQUEST"


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("os.kill(os.getpid(), 11)", r"the process that examined it crashed \(SIGSEGV\)"),
        ("os.abort()", r"the process that examined it crashed \(SIGABRT\)"),
        ("import ctypes; ctypes.string_at(0)", r"crashed \(SIGSEGV\)"),
        ("os.kill(os.getpid(), 9)", "was killed, perhaps for want of memory"),
        ("while True: pass", "took more than 2 s of CPU"),
    ],
)
def test_a_process_that_dies_of_what_it_read(
    tmp_path: Path, what: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=expected):
        _run(tmp_path, what, monkeypatch)


def test_a_process_that_sleeps_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="was not examined within 1 s"):
        _run(tmp_path, "time.sleep(600)", monkeypatch, Limits(memory_mb=300, cpu_s=2, wall_s=1))


def test_memory_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = "\ntry:\n    bytearray({} * 2**20)\nexcept MemoryError:\n    request = 'none'\n"
    assert _run(tmp_path, ask.format(200), monkeypatch) == b"REQUEST"
    assert _run(tmp_path, ask.format(400), monkeypatch) == b"NONE"


@pytest.mark.parametrize(("free", "expected"), [("100 * 2**20", b"NONE"), ("None", b"REQUEST")])
def test_less_is_allowed_where_less_is_free(
    tmp_path: Path, free: str, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = "\ntry:\n    bytearray(150 * 2**20)\nexcept MemoryError:\n    request = 'none'\n"
    assert _run(tmp_path, ask, monkeypatch, before=f"limited.free_bytes = lambda: {free}") == expected


def test_no_core_file_and_no_file_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "msgspec.py").write_text("raise SystemExit('imported from the working folder')")
    monkeypatch.chdir(tmp_path / "here")
    look = "\nimport resource\nrequest = f'{resource.getrlimit(resource.RLIMIT_CORE)} {os.listdir()}'"
    assert _run(tmp_path, look, monkeypatch) == b"(0, 0) []"


def test_a_fault_of_ours_is_not_blamed_on_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="ValueError: ours"):
        _run(tmp_path, "raise ValueError('ours')", monkeypatch)


@pytest.mark.sandbox
@pytest.mark.parametrize("is_debugging", [True, False])
def test_where_a_fault_of_ours_is_told_to_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_debugging: bool
) -> None:
    (tmp_path / "program.py").write_text("def inner():\n    raise ValueError('ours')\ninner()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("edge_sdk_tools.check.gate._MODULE", "program")
    monkeypatch.setenv("EDGE_SDK_DEBUG", "1" if is_debugging else "")
    assert run(["check", str(write_project(tmp_path, pictures=0))]) == 1
    said = capsys.readouterr().err
    assert said.endswith(
        "edge-sdk: this is a bug in edge-sdk: RuntimeError: ValueError: ours; set EDGE_SDK_DEBUG=1 to see where\n"
    )
    assert (f'{tmp_path / "program.py"}", line 2, in inner' in said) is is_debugging


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependencyError, match="needs onnx"):
        _run(tmp_path, "sys.stderr.write('checking a model needs onnx'); sys.exit(8)", monkeypatch)
    program = "import sys; sys.modules['onnx'] = None; import runpy; runpy.run_module('edge_sdk_tools.check.inside')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 8
    assert "needs onnx" in done.stderr
