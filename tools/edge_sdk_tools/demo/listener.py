"""The subscriber process, seen from the demo: started, known to be subscribed, ended when it has everything."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_sdk.core.errors import PublishError
from edge_sdk_tools.demo.process import child, last_line

_QUIET_S = 0.5
_PATIENCE_S = 5.0


@contextmanager
def listening(port: int, messages: Path, errors: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the subscriber.

    Args:
        port: of the broker.
        messages: the file that it appends to; made here.
        errors: for what it complains about.

    Raises:
        PublishError: the broker does not accept it.
    """
    messages.touch()
    command = [sys.executable, "-m", "edge_sdk_tools.demo.subscriber", str(port), str(messages)]
    with child(command, errors) as process:
        if not process.stdout or process.stdout.readline() != "subscribed\n":
            raise PublishError(f"the demo's subscriber cannot subscribe: {last_line(errors)}")
        yield process


def wait_until_quiet(messages: Path) -> None:
    """Wait until nothing has arrived for half a second; at most five seconds."""
    end = time.monotonic() + _PATIENCE_S
    size, since = messages.stat().st_size, time.monotonic()
    while time.monotonic() < min(end, since + _QUIET_S):
        time.sleep(0.05)
        now = messages.stat().st_size
        if now != size:
            size, since = now, time.monotonic()
