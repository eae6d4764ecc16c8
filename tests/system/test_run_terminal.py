"""A run in a terminal: SIGHUP that somebody sends is a reload, and one because the terminal closed is the end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.configs import write_config
from tests.support.device import Device, own_folders

pytestmark = pytest.mark.system

_LEADER = "import os, sys; os.setsid(); os.open(sys.argv[1], os.O_RDWR); os.execv(sys.argv[2], sys.argv[2:])"
# A shell with job control, of which the run is the job in the foreground.
_SHELL = """import os, signal, sys
os.setsid()
tty = os.open(sys.argv[1], os.O_RDWR)
child = os.fork()
if not child:
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    os.tcsetpgrp(tty, os.getpgrp())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTTOU])
    os.execv(sys.argv[2], sys.argv[2:])
signal.signal(signal.SIGHUP, lambda *_: os.kill(child, signal.SIGHUP))
signal.signal(signal.SIGUSR1, lambda *_: os.kill(child, signal.SIGHUP))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def _config(folder: Path, bundle: Path) -> Path:
    stream = f'[[pipelines]]\nname = "gate"\nsource = "pattern:320x240@20"\nbundle = "{bundle}"\n'
    return write_config(folder, f"{stream}latency_ms = 5000\ntune = false\n")


@pytest.mark.parametrize(("session", "reload"), [(_LEADER, signal.SIGHUP), (_SHELL, signal.SIGUSR1)])
def test_closing_its_terminal_ends_it_and_a_reload_does_not(
    cell_bundle: Path, tmp_path: Path, session: str, reload: signal.Signals
) -> None:
    master, slave = os.openpty()
    before = [sys.executable, "-c", session, os.ttyname(slave)]
    with Device(_config(tmp_path, cell_bundle), before=before, environment=own_folders(tmp_path)) as device:
        device.run_on("gate")
        os.close(slave)
        device.process.send_signal(reload)
        device.hear("configuration read again: as before: gate")
        device.run_on("gate")
        os.close(master)
        assert device.end() == 0
        assert device.lines_with("stopped by signal")
        assert len(device.lines_with("configuration read again")) == 1
