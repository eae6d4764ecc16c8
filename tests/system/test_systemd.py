"""What `edge-sdk run` tells a service manager, and what systemd's own tools say of the unit; without a systemd."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.absent import not_installed
from tests.support.broker import find_program
from tests.support.configs import AT_EASE, HEALTHY, Table, config_text, write_config
from tests.support.device import Device
from tests.support.program import PATIENCE_S, started
from tests.support.service import Manager

pytestmark = pytest.mark.system


_SLOW_DISK = """
import os, time
answer_at_once = os.open
def answer_slowly(path, *arguments, **named):
    while str(path).endswith("slow.pub") and not os.path.exists(f"{path}.answers"):
        time.sleep(0.01)
    return answer_at_once(path, *arguments, **named)
os.open = answer_slowly
"""
"""In a program's sitecustomize.py: files named slow.pub are on a disk that does not answer until a test says so."""


def _hear_until(manager: Manager, word: str) -> list[str]:
    """Signs of life, and starts that ask for time, up to a message that begins with the word."""
    while not (message := manager.hear())[0].startswith(word):
        assert message == ["WATCHDOG=1"] or message[0].startswith("EXTEND_TIMEOUT_USEC=")
    return message


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    listening = Manager(tmp_path / "notify")
    yield listening
    listening.close()


def test_a_run_from_its_start_to_its_end(manager: Manager, cell_bundle: Path, long_video: Path) -> None:
    environment = {**os.environ, "NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"}
    command = ("run", cell_bundle, "--source", long_video, "--no-tune")
    with started(*command, stdout=subprocess.DEVNULL, env=environment) as process:
        assert manager.hear() == ["EXTEND_TIMEOUT_USEC=330000000"]  # its turn to start
        assert _hear_until(manager, "READY=1") == ["READY=1", f"STATUS=cells runs on {long_video}"]
        for _ in range(3):
            assert manager.hear() == ["WATCHDOG=1"]
        process.send_signal(signal.SIGHUP)
        assert _hear_until(manager, "RELOADING=1")[1].startswith("MONOTONIC_USEC=")
        assert _hear_until(manager, "READY=1")
        assert _hear_until(manager, "WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        assert _hear_until(manager, "STOPPING=1")
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert said.count("s after start (interpreter and command") == 1


def test_all_goes_on_while_a_configuration_is_read(manager: Manager, cell_bundle: Path, tmp_path: Path) -> None:
    def text(**other: Table) -> str:
        return config_text({"yard": HEALTHY}, defaults={**AT_EASE, "bundle": cell_bundle}, **other)

    (tmp_path / "slow.pub").write_text("no key")
    (tmp_path / "sitecustomize.py").write_text(_SLOW_DISK)
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000", "PYTHONPATH": tmp_path}
    with Device(write_config(tmp_path, text()), environment=environment) as device:
        assert _hear_until(manager, "READY=1")
        device.ask_to_reload(text(device={"name": "other"}, trust={"keys": ["slow.pub"]}))
        assert _hear_until(manager, "RELOADING=1")
        for _ in range(5):
            assert manager.hear() == ["WATCHDOG=1"]
        device.run_on("yard")
        (tmp_path / "slow.pub.answers").touch()
        device.hear("the configuration is not taken, what runs goes on: ", "slow.pub")
        assert _hear_until(manager, "READY=1")
        assert device.stop() == 0


# The unit of the examples.

_UNIT = Path(__file__).parents[2] / "examples/raspberry_pi/edge-sdk.service"


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = find_program("systemd-analyze")
    if program is None:
        not_installed("systemd-analyze is not installed; `apt-get install systemd`")
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
