"""What a run writes: who reads it may be slow, stop reading or go away, or be a terminal that is closed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import msgspec
import pytest

from tests.support.broker import wait_until
from tests.support.bundles import cell_picture, write_cell_pictures
from tests.support.configs import HEALTHY, write_at_ease
from tests.support.device import Device, own_folders
from tests.support.program import PATIENCE_S, edge_sdk, start_edge_sdk

pytestmark = pytest.mark.system

_RUN = (sys.executable, "-m", "edge_sdk", "run")
_PATIENT = ("--latency-ms", "5000", "--no-tune")  # for a machine that does other things too
_PICTURES = 400  # their results, some 400 bytes each, are more than a pipe holds


@pytest.fixture(scope="module")
def many_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_cell_pictures(tmp_path_factory.mktemp("many") / "cells", count=1)
    for number in range(1, _PICTURES):
        shutil.copy(folder / "0.png", folder / f"{number:03}.png")
    return folder


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The end for writing of a pipe that nobody reads, and that takes no more."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"\n" * 4096):
            pass
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(("of", "options"), [("video", ()), ("pictures", ("--json",))])
def test_sigterm_ends_a_run_whose_results_nobody_reads(
    cell_bundle: Path, long_video: Path, many_pictures: Path, full_pipe: int, of: str, options: tuple[str, ...]
) -> None:
    source = long_video if of == "video" else many_pictures
    command = [*_RUN, cell_bundle, "--source", source, *_PATIENT, *options]
    with subprocess.Popen(command, stdout=full_pipe, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            assert any("first result" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            _, rest = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in rest
    assert "Fatal" not in rest


def test_nobody_waits_for_a_reader_of_standard_error(cell_bundle: Path, full_pipe: int) -> None:
    command = [*_RUN, str(cell_bundle), "--source", "pattern:128x128@20", "--no-tune"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=full_pipe)
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


def test_a_reader_that_goes_away_ends_the_run_quietly(cell_bundle: Path, video: Path) -> None:
    process = start_edge_sdk("run", cell_bundle, "--source", video, "--quiet")
    assert process.stdout
    assert process.stderr
    try:
        assert msgspec.json.decode(process.stdout.readline())["seq"] >= 0
        process.stdout.close()
        wait_until(lambda: process.poll() is not None, "its end")
        assert (process.returncode, process.stderr.read()) == (1, "")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_what_a_library_writes_about_a_damaged_picture_is_no_line(cell_bundle: Path, tmp_path: Path) -> None:
    """A JPEG that decodes, and of which libjpeg has something to say."""
    data = bytearray(cv2.imencode(".jpg", cell_picture(0))[1].tobytes())
    data[-2:-2] = b"\x12\x34\x56"
    (tmp_path / "0.jpg").write_bytes(data)
    read = [sys.executable, "-c", "import cv2, sys; cv2.imread(sys.argv[1])", str(tmp_path / "0.jpg")]
    bare = subprocess.run(read, capture_output=True, text=True, check=True)
    assert "Corrupt JPEG data" in bare.stderr  # otherwise nothing is tested here
    done = edge_sdk("run", cell_bundle, "--source", tmp_path, "--no-tune", "--json")
    assert (done.returncode, '"results":1' in done.stdout) == (0, True), done.stderr
    assert "source" in done.stderr
    assert "JPEG data" not in done.stderr


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_a_stopped_run_finishes_its_video(cell_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an encoder that is as slow as on a small board."""
    slow = tmp_path / "ffmpeg"
    slow.write_text(f'#!/bin/sh\n"{shutil.which("ffmpeg")}" "$@"\ncode=$?\nsleep 3\nexit $code\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    video = tmp_path / "a.mp4"
    process = start_edge_sdk("run", cell_bundle, "--source", HEALTHY["source"], "--annotate", video, "--no-tune")
    try:
        assert process.stdout
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert cv2.VideoCapture(str(video)).read()[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "ffmpeg"]


# A terminal: SIGHUP that somebody sends is a reload, and one because the terminal closed is the end.

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


@pytest.mark.parametrize(("session", "reload"), [(_LEADER, signal.SIGHUP), (_SHELL, signal.SIGUSR1)])
def test_closing_its_terminal_ends_it(cell_bundle: Path, tmp_path: Path, session: str, reload: signal.Signals) -> None:
    master, slave = os.openpty()
    before = [sys.executable, "-c", session, os.ttyname(slave)]
    config = write_at_ease(tmp_path, cell_bundle, {"gate": HEALTHY})
    with Device(config, before=before, environment=own_folders(tmp_path)) as device:
        device.run_on("gate")
        os.close(slave)
        device.process.send_signal(reload)
        device.hear("configuration read again: as before: gate")
        device.run_on("gate")
        os.close(master)
        assert device.end() == 0
        assert device.lines_with("stopped by signal")
        assert len(device.lines_with("configuration read again")) == 1
