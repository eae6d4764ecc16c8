"""The program: in a process of its own, as a user runs it, or in this one."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

PATIENCE_S = 200
"""Until a program is given up: only a guard, what is tested hangs for ever where it fails."""


class Printed(NamedTuple):
    out: str
    err: str


Cli: TypeAlias = Callable[..., Printed]
"""`cli(code, *arguments)` runs a command of `edge-sdk` in this process: it ends with this code, and this it printed."""


def edge_sdk(*arguments: object, before: Sequence[str] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `edge-sdk` to its end, with output captured; `before` is a command that runs it, such as `unshare`."""
    return subprocess.run(
        [*before, sys.executable, "-m", "edge_sdk", *map(str, arguments)], capture_output=True, text=True, check=False,
        timeout=PATIENCE_S, env={**os.environ, **environment},
    )  # fmt: skip


@contextmanager
def started(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`edge-sdk` beside the test, with output captured unless options of Popen say otherwise; gone at the end."""
    command = [sys.executable, "-m", "edge_sdk", *map(str, arguments)]
    captured = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **{**captured, **options}) as process:
        try:
            yield process
        finally:
            process.kill()
