"""`edge-sdk run --annotate`: the video is whole, however long its end takes."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import cv2
import pytest

from tests.support.broker import wait_until
from tests.support.program import PATIENCE_S, start_edge_sdk

pytestmark = pytest.mark.system


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_a_run_that_is_stopped_finishes_its_video(
    cell_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an encoder that is as slow as on a small board."""
    slow = tmp_path / "ffmpeg"
    slow.write_text(f'#!/bin/sh\n"{shutil.which("ffmpeg")}" "$@"\ncode=$?\nsleep 3\nexit $code\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    video = tmp_path / "a.mp4"
    process = start_edge_sdk("run", cell_bundle, "--source", "pattern:320x240@20", "--annotate", video, "--no-tune")
    try:
        assert process.stdout
        wait_until(lambda: bool(process.stdout and process.stdout.readline()), "a result")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert cv2.VideoCapture(str(video)).read()[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "ffmpeg"]
