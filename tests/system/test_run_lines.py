"""`edge-sdk run` without a broker: who reads standard output may be slow, stop reading, or go away."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import msgspec
import pytest

from tests.support.broker import wait_until
from tests.support.bundles import write_cell_pictures
from tests.support.program import PATIENCE_S, edge_sdk, start_edge_sdk

pytestmark = pytest.mark.system

_RUN = (sys.executable, "-m", "edge_sdk", "run")
_PATIENT = ("--latency-ms", "5000")  # for a machine that does other things too
PICTURES = 400  # their results, some 400 bytes each, are more than a pipe holds


@pytest.fixture(scope="module")
def many_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_cell_pictures(tmp_path_factory.mktemp("many") / "cells", count=1)
    for number in range(1, PICTURES):
        shutil.copy(folder / "0.png", folder / f"{number:03}.png")
    return folder


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("of", ["video", "pictures"])
@pytest.mark.parametrize("reads", ["nothing", "the first results"])
def test_sigterm_ends_a_run_that_nobody_reads(
    cell_bundle: Path, long_video: Path, many_pictures: Path, reads: str, of: str, options: tuple[str, ...]
) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    if reads == "nothing":
        _fill(writer)
    source = long_video if of == "video" else many_pictures
    command = [*_RUN, cell_bundle, "--source", source, *_PATIENT, *options]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, text=True) as process:
        os.close(writer)
        assert process.stderr
        try:
            assert any("is open" in line for line in process.stderr)
            wait_until(lambda: _waiting_bytes(reader) > 3000, "a pipe that is nearly full")
            time.sleep(0.3)  # for the line that does not fit any more
            process.send_signal(signal.SIGTERM)
            _, rest = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            os.close(reader)
    assert process.returncode == 0
    assert "Traceback" not in rest
    assert "Fatal" not in rest


def _waiting_bytes(reader: int) -> int:
    return int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4), sys.byteorder)


def _fill(descriptor: int) -> None:
    """Write until a pipe takes no more, and leave it blocking as it was."""
    os.set_blocking(descriptor, False)
    try:
        while os.write(descriptor, b"\n" * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(descriptor, True)


def test_the_loop_goes_on_while_nobody_reads(cell_bundle: Path, video: Path) -> None:
    reader, writer = os.pipe()
    _fill(writer)
    command = [*_RUN, cell_bundle, "--source", video, "--frames", "20", *_PATIENT]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S)
    os.close(reader)
    os.close(writer)
    assert done.returncode == 0
    assert "stopped by frames; 20 results" in done.stderr
    assert "warning: 20 of 20 results were not read from standard output" in done.stderr


def test_every_result_of_images_reaches_a_reader_that_begins_late(cell_bundle: Path, many_pictures: Path) -> None:
    process = start_edge_sdk("run", cell_bundle, "--source", many_pictures, "--json", "--quiet")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)  # longer than it takes, and than a stopped program waits for its reader
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert (process.returncode, stderr) == (0, "")
    *results, summary = [msgspec.json.decode(line) for line in stdout.splitlines()]
    assert [r["seq"] for r in results] == list(range(PICTURES))
    assert len({r["run_id"] for r in results}) == 1
    assert summary["lines"] == {"put": PICTURES, "written": PICTURES, "dropped": 0}


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


def test_a_full_disk_is_one_line(cell_bundle: Path, cell_pictures: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [*_RUN, cell_bundle, "--source", cell_pictures, "--quiet"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert done.stderr == "edge-sdk: results cannot be written: No space left on device\n"


def test_every_start_has_a_run_id_of_its_own(cell_bundle: Path, cell_pictures: Path) -> None:
    runs = [edge_sdk("run", cell_bundle, "--source", cell_pictures, "--frames", 1) for _ in range(2)]
    first, second = (msgspec.json.decode(done.stdout) for done in runs)
    assert first["boot_id"] == second["boot_id"]
    assert first["seq"] == second["seq"]
    assert first["run_id"] != second["run_id"]
