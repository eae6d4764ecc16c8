"""Openings that go on at the same time, each with FFmpeg's options of its own, and pictures that are too large."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_sdk.core.errors import CameraError
from edge_sdk.sources import opencv
from edge_sdk.sources.location import SourceOptions
from edge_sdk.sources.opencv import capture_options, open_file, open_stream
from edge_sdk.sources.opening import open_source
from tests.support.pictures import write_video

VARIABLE = "OPENCV_FFMPEG_CAPTURE_OPTIONS"


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=300) as listener:
        yield listener


def _refused(url: str, options: SourceOptions) -> None:
    with pytest.raises(CameraError):
        open_stream(url, options)


def _url(silent: socket.socket) -> str:
    return f"rtsp://127.0.0.1:{silent.getsockname()[1]}/x"


@pytest.fixture(autouse=True)
def _the_variable_is_afterwards_as_it_was() -> Iterator[None]:
    before = os.environ.get(VARIABLE, opencv._AS_WITHOUT)
    yield
    assert os.environ.get(VARIABLE, opencv._AS_WITHOUT) == before


def test_ffmpegs_options_are_afterwards_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "fflags;nobuffer")
    with capture_options("udp"):
        assert "rtsp_transport;udp" in os.environ[VARIABLE]
    assert os.environ[VARIABLE] == "fflags;nobuffer"
    with pytest.raises(CameraError, match="format_whitelist"), capture_options("file"):
        raise CameraError(os.environ[VARIABLE])
    assert os.environ[VARIABLE] == "fflags;nobuffer"


def _seconds(function: Callable[[], object]) -> float:
    began = time.monotonic()
    function()
    return time.monotonic() - began


@pytest.fixture
def curt() -> Iterator[str]:
    """The URL of a server that takes two connections, and hangs up at each."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            for _ in range(2):
                listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        yield _url(listener)
        thread.join(30)


@pytest.mark.parametrize("hanging", ["tcp", "udp"])
def test_an_opening_that_hangs_holds_up_no_other(
    tmp_path: Path, silent: socket.socket, curt: str, hanging: str
) -> None:
    film = str(write_video(tmp_path / "a.avi", range(3)))
    options = SourceOptions(transport="tcp" if hanging == "tcp" else "udp", open_timeout_s=10.0)
    thread = threading.Thread(target=_refused, args=(_url(silent), options))
    thread.start()
    time.sleep(0.3)
    for transport in ("udp", "tcp"):
        other = SourceOptions(transport="udp" if transport == "udp" else "tcp")
        assert _seconds(partial(_refused, curt, other)) < 5
        assert _seconds(partial(open_file, film)) < 5
    assert thread.is_alive()
    silent.close()  # hangs up
    thread.join(30)


def test_a_hundred_openings_at_once_each_with_its_own_options(tmp_path: Path, silent: socket.socket) -> None:
    """With a file's options a stream is refused at once, with a stream's a text plays as on a terminal."""
    text = tmp_path / "a.txt"
    text.write_text("a plain text\n" * 300)

    def open_one(number: int) -> bool:
        if number % 2:
            return open_file(str(text)) is None
        options = SourceOptions(transport="tcp" if number % 4 else "udp", open_timeout_s=1.0)
        return _seconds(partial(_refused, _url(silent), options)) > 0.9

    with ThreadPoolExecutor(100) as openings:
        assert all(openings.map(open_one, range(100)))


# Pictures that are too large.

JPEG = cv2.imencode(".jpg", np.random.default_rng(1).integers(0, 255, (37, 53, 3), np.uint8))[1].tobytes()


def test_a_stream_or_film_of_pictures_that_are_too_large_does_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_sdk.sources.opencv.MAX_SENT_PX", 53 * 37 - 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\n\r\n" + JPEG)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(CameraError, match=r"/x: its pictures are 53x37, expected 0\.0 million pixels at most$"):
            open_source(f"http://127.0.0.1:{listener.getsockname()[1]}/x")
        thread.join(30)
    with pytest.raises(CameraError, match=r"a\.avi: its pictures are \d+x\d+, expected"):
        open_source(str(write_video(tmp_path / "a.avi", range(3))))


_OPEN = """
import sys
import cv2  # first: it has read its limit before edge_sdk sets one
from pathlib import Path
from edge_sdk.sources.opening import open_source
for location in sys.argv[1:]:
    try:
        open_source(location).close()
    except Exception as error:
        print(error)
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")).split()[1])
"""


def test_memory_is_bounded_also_where_cv2_was_loaded_first() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=f\r\n\r\n"
            part = b"--f\r\nContent-Type: image/jpeg\r\nContent-Length: 1000000000\r\n\r\n" + JPEG[:-2]
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(head + part)
                try:
                    for _ in range(1000):
                        connection.sendall(b"x" * 1_000_000)
                except OSError:
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        command = [sys.executable, "-c", _OPEN, url]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        thread.join(30)
    assert int(run.stdout.splitlines()[-1]) < 300_000
