"""Standard error of a run: nobody waits for its reader, and what libraries write about single pictures is not in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import pytest

from tests.support.bundles import cell_picture
from tests.support.program import PATIENCE_S, edge_sdk

pytestmark = pytest.mark.system

_READ = "import cv2, sys; print(cv2.imread(sys.argv[1]).shape)"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A JPEG that decodes, and of which libjpeg has something to say."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    data = bytearray(cv2.imencode(".jpg", cell_picture(0))[1].tobytes())
    data[-2:-2] = b"\x12\x34\x56"
    (folder / "0.jpg").write_bytes(data)
    return folder


def test_damaged_pictures_are_no_lines(cell_bundle: Path, damaged: Path) -> None:
    command = [sys.executable, "-c", _READ, str(damaged / "0.jpg")]
    bare = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Corrupt JPEG data" in bare.stderr  # otherwise nothing is tested here
    done = edge_sdk("run", cell_bundle, "--source", damaged, "--no-tune", "--json")
    assert done.returncode == 0, done.stderr
    assert "source" in done.stderr
    assert "JPEG data" not in done.stderr
    assert '"results":1' in done.stdout


def test_a_reader_that_reads_nothing_holds_up_neither_results_nor_the_end(cell_bundle: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x")
    except BlockingIOError:
        os.set_blocking(writing, True)
    command = [sys.executable, "-m", "edge_sdk", "run", str(cell_bundle), "--source", "pattern:128x128@20", "--no-tune"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing)
    try:
        assert process.stdout is not None
        for _ in range(5):
            assert process.stdout.readline().startswith(b'{"task"')
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
        os.close(reading)
        os.close(writing)
