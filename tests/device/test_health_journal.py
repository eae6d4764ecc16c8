"""Lines for people, on a terminal and in the journal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import sys
from edge_sdk.health.journal import Priority, line_for_people
print(line_for_people("source 0 is open"), file=sys.stderr)
print(line_for_people("warning: no key"), file=sys.stderr)
print(line_for_people("no such\\n\\x1b[2Jbundle", Priority.ERROR), file=sys.stderr)
"""


def _lines(path: Path, stream: str | None) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "JOURNAL_STREAM"}
    with path.open("w") as file:
        if stream is not None:
            environment["JOURNAL_STREAM"] = stream
        subprocess.run([sys.executable, "-c", _PROGRAM], stderr=file, env=environment, check=True)
    return path.read_text().splitlines()


@pytest.mark.parametrize("stream", [None, "", "8:1", "nonsense"])
def test_elsewhere_they_bear_the_program_s_name(stream: str | None, tmp_path: Path) -> None:
    assert _lines(tmp_path / "lines", stream) == [
        "edge-sdk: source 0 is open",
        "edge-sdk: warning: no key",
        "edge-sdk: no such\ufffd\ufffd[2Jbundle",
    ]


def test_in_the_journal_they_bear_their_priority(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.touch()
    status = path.stat()
    assert _lines(path, f"{status.st_dev}:{status.st_ino}") == [
        "<6>source 0 is open",
        "<4>warning: no key",
        "<3>no such\ufffd\ufffd[2Jbundle",
    ]
