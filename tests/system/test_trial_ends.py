"""Whatever ends a run or a tuning, no trial goes on behind it, and nothing of one stays on the disk."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import wait_until
from tests.support.bundles import endless_of_hostile, write_graded
from tests.support.pictures import write_video
from tests.support.program import PATIENCE_S, start_edge_sdk

pytestmark = pytest.mark.system

LIMITS = ("--latency-ms", "1000", "--trial-seconds", "200")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, and with what the processes of this test can be told from others."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def _trials(scratch: Path) -> list[int]:
    """Processes that try a model."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may have ended
            is_trial = b"edge_sdk.trial" in (folder / "cmdline").read_bytes()
            if is_trial and str(scratch).encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@contextlib.contextmanager
def _second_is_tried(scratch: Path, *command: object) -> Iterator[subprocess.Popen[str]]:
    process = start_edge_sdk(*command)
    try:
        state = scratch.parent / "state"
        wait_until(lambda: any(state.rglob("*.json")), "the trial of the first variant")
        wait_until(lambda: bool(_trials(scratch)), "that of the second, which hangs")
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_end_of_the_source(tmp_path: Path, scratch: Path) -> None:
    bundle = write_graded(tmp_path / "graded.edge", hostile=endless_of_hostile(side=8))
    video = write_video(tmp_path / "v.avi", range(500), fps=50)
    command = ("run", bundle, "--source", video, *LIMITS, "--json")
    with _second_is_tried(scratch, *command) as process:
        output, complaint = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, complaint
        assert '"ended_by":"end of source"' in output
        assert not _trials(scratch)
        assert not list(scratch.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_tuning(tmp_path: Path, scratch: Path, number: signal.Signals) -> None:
    bundle = write_graded(tmp_path / "graded.edge", hostile=endless_of_hostile(side=8))
    with _second_is_tried(scratch, "tune", bundle, "--latency-ms", 1000) as process:
        process.send_signal(number)
        _, complaint = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130, complaint
        assert complaint.strip().endswith("edge-sdk: interrupted")
        assert not _trials(scratch)
        assert not list(scratch.iterdir())
