"""Streams and films of pictures that are too large, and what an answer's length may take of memory."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_sdk.core.errors import CameraError
from edge_sdk.sources.opening import open_source
from tests.support.pictures import write_video

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
