"""The installed program, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys


def edge_sdk(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `edge-sdk` to its end, with output captured."""
    return subprocess.run(
        [sys.executable, "-m", "edge_sdk", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


def start_edge_sdk(*arguments: object) -> subprocess.Popen[str]:
    """Start `edge-sdk`; the caller ends it."""
    return subprocess.Popen(
        [sys.executable, "-m", "edge_sdk", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
