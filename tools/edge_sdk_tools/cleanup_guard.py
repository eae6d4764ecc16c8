"""Janitor: a process that removes a folder when the one that works in it dies without a word.

A kill for want of memory, or a crash in native code, runs no clean-up of Python's. It waits on a pipe that closes with
its owner, whatever ends that. Imports nothing of its neighbours: it is started by its path, and costs 20 ms.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def cleanup_guard(partial: Path, old: Path, output: Path) -> Iterator[None]:
    """Guard `partial` while this is open; it is removed at the end in any case.

    Raises:
        OSError: no process can be started.
    """
    command = [sys.executable, "-I", "-S", __file__, *(str(path.absolute()) for path in (partial, old, output))]
    try:
        # A session of its own: Ctrl-C is for its owner.
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True):
            yield
    finally:
        _clean_up(partial, old, output)


def _clean_up(partial: Path, old: Path, output: Path) -> None:
    if old.exists() and not output.exists():
        old.rename(output)
    shutil.rmtree(partial, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    _clean_up(*map(Path, sys.argv[1:]))
