"""A run that is told to stop while its bundle is being tried."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from tests.support.broker import wait_until
from tests.support.bundles import edit_manifest, endless_of_hostile, write_graded, write_hostile
from tests.support.pictures import write_video
from tests.support.program import PATIENCE_S, start_edge_sdk

pytestmark = pytest.mark.system


@pytest.mark.smoke
def test_a_signal_during_the_trial_ends_the_run(tmp_path: Path) -> None:
    hostile = write_hostile(tmp_path / "hostile.edge", endless_of_hostile())
    process = start_edge_sdk("run", hostile, "--source", tmp_path, "--trial-seconds", 200, "--json")
    assert process.stderr is not None
    assert "warning" in process.stderr.readline()  # that no key is trusted: the trial is next
    process.send_signal(signal.SIGTERM)
    output, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, complaint
    assert '"ended_by":"signal"' in output


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whose second variant hangs, on a board that tried nothing yet."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    return write_graded(tmp_path / "graded.edge", hostile=endless_of_hostile(side=8))


def test_a_signal_during_the_trial_of_another_variant_ends_the_run(tmp_path: Path, bundle: Path) -> None:
    video = write_video(tmp_path / "v.avi", range(20), fps=50)
    edit_manifest(bundle, latency_budget_ms=0.0001)  # which none keeps
    process = start_edge_sdk("run", bundle, "--source", video, "--trial-seconds", 200, "--json")
    try:
        wait_until(lambda: any((tmp_path / "state").rglob("*.json")), "the trial of the first variant")
        wait_until(lambda: _is_trying(process.pid), "that of the second")
        process.send_signal(signal.SIGTERM)
        output, complaint = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, complaint
    assert '"ended_by":"signal"' in output
    assert "left out" not in complaint


def test_a_signal_while_another_model_hangs_beside_the_stream_ends_the_run(tmp_path: Path, bundle: Path) -> None:
    video = write_video(tmp_path / "v.avi", range(1500), fps=50)
    # What was not tried hangs in the tuner's thread.
    process = start_edge_sdk("run", bundle, "--source", video, "--latency-ms", 1000, "--trial-seconds", 0, "-q")
    assert process.stdout is not None
    reader = threading.Thread(target=process.stdout.read)
    reader.start()
    try:
        wait_until(lambda: _busiest_s(process.pid) > 1, "the model that hangs")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        assert process.stderr is not None
        process.stderr.close()


def _busiest_s(pid: int) -> float:
    """CPU time of the busiest thread beside the main one, in seconds."""
    ticks = [0]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it may have ended
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            ticks.append(int(fields[11]) + int(fields[12]) if task.name != str(pid) else 0)
    return max(ticks) / os.sysconf("SC_CLK_TCK")


def _is_trying(pid: int) -> bool:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread, or a child of it, may have ended
            for child in task.read_text().split():
                if b"edge_sdk.trial" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return True
    return False
