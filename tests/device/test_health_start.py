"""What a start took."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_sdk.health.start import Start, process_age_s

_TICKS = os.sysconf("SC_CLK_TCK")


def _stat(root: Path, text: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/stat").write_text(text)
    return root


@pytest.mark.parametrize("name", ["edge-sdk", "a (b) c", ") 1 2 3 (", "\u00fc"])
def test_the_process_s_age_whatever_its_name(name: str, tmp_path: Path) -> None:
    fields = ["S", *["0"] * 18, str(50 * _TICKS), *["0"] * 30]
    root = _stat(tmp_path, f"4242 ({name}) {' '.join(fields)}\n")
    assert process_age_s(root, now_s=52.5) == 2.5
    assert process_age_s(root, now_s=49.0) is None  # a clock of another machine


@pytest.mark.parametrize("text", ["", "1 (x) S 0 0", "nothing", "1 (x) " + "word " * 40])
def test_a_file_that_says_nothing_is_no_age(text: str, tmp_path: Path) -> None:
    assert process_age_s(_stat(tmp_path, text)) is None
    assert process_age_s(tmp_path / "none") is None


def test_a_real_process_is_as_old_as_its_parent_saw() -> None:
    program = "import time; time.sleep(0.3); from edge_sdk.health.start import process_age_s; print(process_age_s())"
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.29 <= float(done.stdout) <= time.monotonic() - before + 1 / _TICKS


def test_parts_follow_each_other_and_add_up() -> None:
    now = iter(second * 1_000_000_000 for second in (10, 11, 13, 16))
    start = Start(age_s=0.5, clock_ns=lambda: next(now))
    start.mark("bundle")
    start.mark("model")
    times = start.first_result()
    assert times is not None
    assert times.first_result_ms == 6500.0
    assert times.parts_ms == {
        "interpreter and command": 500.0,
        "bundle": 1000.0,
        "model": 2000.0,
        "first frame and result": 3000.0,
    }
    assert times.line() == (
        "first result 6.50 s after start (interpreter and command 0.50, bundle 1.00, model 2.00, "
        "first frame and result 3.00)"
    )
    start.mark("later")
    assert start.first_result() is None
    assert start.times is times
