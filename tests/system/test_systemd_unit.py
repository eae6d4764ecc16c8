"""The unit of the examples, looked at by systemd's own tools, without a systemd that runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.absent import not_installed
from tests.support.broker import find_program

pytestmark = pytest.mark.system

_UNIT = Path(__file__).parents[2] / "examples/raspberry_pi/edge-sdk.service"


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = find_program("systemd-analyze")
    if program is None:
        reason = "systemd-analyze is not installed; `apt-get install systemd`"
        not_installed(reason)
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def test_systemd_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    """It only warns of a line that it does not know: what it prints counts, not its exit code."""
    installed = tmp_path / _UNIT.name
    installed.write_text(_UNIT.read_text().replace("/opt/edge-sdk/bin/edge-sdk", "/bin/true"))
    done = _analyze("verify", "--man=no", str(installed))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_is_exposed_as_little_as_promised() -> None:
    done = _analyze("security", "--offline=true", "--threshold=20", "--no-pager", str(_UNIT))
    assert done.returncode == 0, done.stdout + done.stderr
