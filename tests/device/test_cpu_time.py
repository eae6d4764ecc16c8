"""Work of other programs, told from this one's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_sdk.cpu_time import CpuTime


def _stat(root: Path, *cpus: str) -> CpuTime:
    (root / "proc").mkdir(exist_ok=True)
    rows = [
        "cpu  0 0 0 0 0 0 0 0 0 0",
        *(f"cpu{n} {times}" for n, times in enumerate(cpus)),
        "intr 7 0 0",
        "",
        "btime 1",
    ]
    (root / "proc" / "stat").write_text("\n".join(rows) + "\n")
    return CpuTime.read(root, cpus=[0, 1])


def test_what_counts_as_busy(tmp_path: Path) -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    # user, nice, system, idle, iowait, irq, softirq, steal, and guests, which are in the first two already
    found = _stat(tmp_path, "1 2 4 8 16 32 64 128 1000 1000", "0 0 0 0 0 0 0 0 0 0", "9999 0 0 0 0 0 0 0 0 0")
    assert found.total_s == pytest.approx(255 / hertz)
    assert found.busy_s == pytest.approx((255 - 24) / hertz)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (CpuTime(100, 50, 10), CpuTime(140, 80, 20), 0.5),
        (CpuTime(100, 50, 10), CpuTime(140, 60, 20), 0.0),
        (CpuTime(100, 50, 10), CpuTime(140, 55, 20), 0.0),  # ticks are counted late
        (CpuTime(100, 50, 10), CpuTime(140, 95, 11), 1.0),
        (CpuTime(100, 50, 10), CpuTime(100, 50, 10), None),
        (CpuTime(0, 0, 10), CpuTime(0, 0, 20), None),
    ],
)
def test_others_are_what_is_not_our_own(before: CpuTime, after: CpuTime, expected: float | None) -> None:
    assert after.others_since(before) == expected


@pytest.mark.parametrize("text", [None, "", "cpu 1 2 3\n"])
def test_where_it_is_not_shown_it_is_not_known(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / "stat").write_text(text)
    found = CpuTime.read(tmp_path)
    assert found.others_since(found) is None
    assert found.total_s == 0


def test_here_another_program_is_another_and_our_own_work_is_not() -> None:
    """One core's worth of each for a second; how much is left of it on a busy machine does not matter."""
    hog = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(hog) as process:
        before, until = CpuTime.read(), time.process_time() + 0.5
        while time.process_time() < until:
            pass
        after = CpuTime.read()
        process.kill()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert after.own_s - before.own_s >= 0.5 - 2 * tick_s  # user and system time are each told in whole ticks
    others_s = (after.others_since(before) or 0) * (after.total_s - before.total_s)
    assert others_s > 0.1
    assert others_s <= after.busy_s - before.busy_s - 0.4
