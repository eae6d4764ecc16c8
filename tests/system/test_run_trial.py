"""A run that is told to stop while its bundle is being tried."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.device.hostile import endless, write_hostile
from tests.system.program import PATIENCE_S, start_edge_sdk

pytestmark = pytest.mark.system


def test_a_signal_during_the_trial_ends_the_run(tmp_path: Path) -> None:
    hostile = write_hostile(tmp_path / "hostile.edge", endless())
    process = start_edge_sdk("run", hostile, "--source", tmp_path, "--trial-seconds", 200, "--json")
    assert process.stderr is not None
    assert "warning" in process.stderr.readline()  # that no key is trusted: the trial is next
    process.send_signal(signal.SIGTERM)
    output, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, complaint
    assert '"ended_by":"signal"' in output
