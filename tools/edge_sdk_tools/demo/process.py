"""A child process that never outlives the block that started it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def child(
    command: Sequence[str | Path], errors: Path, *, quiet: bool = False, grace_s: float = 10.0
) -> Iterator[subprocess.Popen[str]]:
    """Start a program, and end it with the block: SIGTERM, and SIGKILL when that does not help.

    Args:
        command: program and arguments.
        errors: a file for what it writes to standard error.
        quiet: what it writes to standard output goes nowhere; otherwise `stdout` is a pipe for the caller to read.
        grace_s: seconds between the two signals.

    Yields:
        The process; its `stdin` is a pipe that closes with the block.
    """
    with errors.open("w", encoding="utf-8") as sink:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if quiet else subprocess.PIPE,
            stderr=sink,
            text=True,
        )
    try:
        yield process
    finally:
        _end(process, grace_s)
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


def _end(process: subprocess.Popen[str], grace_s: float) -> None:
    try:
        process.terminate()
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also when Ctrl-C interrupts the wait; killing what has ended does nothing.
        process.kill()
        process.wait()


def last_line(errors: Path) -> str:
    """The last line that a child wrote to its error file, for a message."""
    lines = [line.strip() for line in errors.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
