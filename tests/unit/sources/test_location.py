"""Where a source is and what is asked of it: kinds of locations, options, and that nothing secret is shown."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import cv2
import numpy as np
import pytest

from edge_sdk.core.errors import CameraError, ConfigError
from edge_sdk.sources import opencv, opening
from edge_sdk.sources.location import SourceOptions, add_password, address_of
from edge_sdk.sources.opencv import capture_options, open_file, open_stream
from tests.support.logs import refusal
from tests.support.pictures import write_video
from tests.support.streams import VideoCapture, put_in_place


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("rtsp://bob:s3/cret@cam/live", "rtsp://cam/live"),
        ("http://cam/video?user=bob&pwd=s3cret", "http://cam/video?…"),
        ("rtsp://cam/user=bob&password=s3cret&channel=1", "rtsp://cam/user=…&password=…&channel=1"),
        ("rtsp://cam/user=bob_password=s3cret_channel=1.sdp", "rtsp://cam/user=…"),
        ("rtsps://host:7441/AbCdEfGhIjKlMnOp?enableSrtp", "rtsps://host:7441/…?…"),
        ("rtsp://cam/live/aq3kx9zz17mm40bf/main", "rtsp://cam/live/…/main"),
        ("rtsp://cam/550e8400-e29b-41d4-a716-446655440000.sdp", "rtsp://cam/….sdp"),
        ("rtsp:/bob:s3cret@cam/live", "…@cam/live"),
        ("bob:s3cret://x@cam/live", "…://cam/live"),
        ("rtsp://cam/a\nERROR forged", "rtsp://cam/a�ERROR forged"),
        ("gst:rtspsrc location=rtsp://bob:s3cret@cam user-pw=s3!cret ! appsink", "gst:rtspsrc ! appsink"),
        ("gst:rtspsrc user-pw='s3 ! cret word' ! appsink", "gst:…"),
        ("/videos/walk@2x.mp4", "/videos/walk@2x.mp4"),
    ],
)
def test_nothing_secret_is_shown(location: str, shown: str) -> None:
    assert opening.redact(location) == shown


def test_a_login_is_not_shown_however_wrong_the_url_is_written() -> None:
    """Where a colon stands before the secret and an @ behind it: without those nothing tells it from a path."""
    random, pieces = Random(7), (":", "@", "/", "//", "://", "rtsp", "cam", "bob", "?", "#", ".", " ", "%40")

    def some(most: int) -> str:
        return "".join(random.choices(pieces, k=random.randint(0, most)))

    for _ in range(2_000):
        location = f"{some(5)}:{some(3)}s3cret{some(3)}@{some(5)}"
        assert "s3cret" not in opening.redact(location), location


def test_what_no_secret_is_stays_readable() -> None:
    host = "cam0123456789abcdef0123.local:554"
    for path in (
        *("h264Preview_01_main", "Streaming/Channels/101", "onvif-media/media.amp", "axis-cgi/mjpg/video.cgi"),
        *("live/codec=h264/signal=1", "camera_of_the_northern_gate", "AbCdEfGhIjKlMnO"),  # 15 characters
    ):
        assert opening.redact(f"rtsp://{host}/{path}") == f"rtsp://{host}/{path}"


def test_a_password_is_percent_encoded_and_needs_a_user() -> None:
    for location, expected in (
        ("rtsp://bob@cam:554/live?x=1", "rtsp://bob:p%40s%2Fs%3Aw%25rd@cam:554/live?x=1"),
        ("http://bob:old@cam", "http://bob:p%40s%2Fs%3Aw%25rd@cam"),
        ("video.mp4", "video.mp4"),
    ):
        assert add_password(location, "p@s/s:w%rd") == expected
        assert add_password(location, None) == location
    said = refusal(ConfigError, add_password, "rtsp://cam/live", "s3cret")
    assert said.startswith("rtsp://cam/live: a password, but no user")
    assert ("write rtsp://USER@cam" in said, "s3cret" in said) == (True, False)


def test_kinds(tmp_path: Path) -> None:
    for name in ("a.JPG", "b.mp4", "c"):
        (tmp_path / name).touch()
    for location, kind in (
        (str(tmp_path), opening.IMAGES),
        (str(tmp_path / "a.JPG"), opening.IMAGES),
        (str(tmp_path / "b.mp4"), opening.VIDEO),
        (str(tmp_path / "c"), opening.VIDEO),
        ("0", opening.DEVICE),
        ("/dev/video0", opening.DEVICE),
        ("picamera2:1", opening.PICAMERA),
        ("gst:videotestsrc", opening.GSTREAMER),
        ("RTSPS://cam/live", opening.STREAM),
    ):
        assert opening.kind_of(location) is kind


def test_where_a_server_is() -> None:
    for url, expected in (
        ("rtsp://cam/live?x", ("cam", 554, "/live?x", "cam")),
        ("rtsp://bob:s3@cret@cam:8554/live", ("cam", 8554, "/live", "cam:8554")),
        ("HTTPS://[::1]/v", ("::1", 443, "/v", "[::1]")),
        ("http://bob@[fe80::1%eth0]:8080/v", ("fe80::1%eth0", 8080, "/v", "[fe80::1]:8080")),
    ):
        address = address_of(url)
        assert (address.host, address.port, address.target, address.authority) == expected


def test_what_names_no_server() -> None:
    for url in ("rtsp:///live", "http://cam:port/v", "http://cam:70000/v", "rtsp://b:s3cret@cam:0/v", "http://[::1/v"):
        said = refusal(CameraError, opening.kind_of, url)
        assert ("no host, or no possible port" in said, "s3cret" in said) == (True, False), said


def test_a_file_whose_name_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV's Python binding crashes on it."""
    folder = tmp_path / "\udcff"
    folder.mkdir()
    with pytest.raises(CameraError, match="not valid UTF-8"):
        opening.open_source(str(write_video(tmp_path / "a.avi", range(2)).rename(folder / "a.avi")))
    monkeypatch.chdir(folder)  # so that it stands before the name
    with pytest.raises(CameraError, match="not valid UTF-8"):
        opening.open_source("a.avi")


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("", "no source: no such file or folder, expected a V4L2 index"),
        ("nowhere.mp4", "nowhere.mp4: no such file or folder"),
        ("rtsp:/cam/pw=s3cret", "rtsp:/cam/pw=…: `//` is missing behind rtsp:, expected rtsp://HOST/PATH"),
        ("a\0b", "a�b: no such file"),
        ("rtsp://ca\udcffm/x", "rtsp://ca�m/x: not valid UTF-8"),
        ("x" * 5000, "no such file"),
        ("ftp://bob:s3cret@cam/x", "ftp://cam/x: this kind of URL is not supported, expected a V4L2 index"),
        ("97", "/dev/video97: no such device; see `v4l2-ctl --list-devices`"),
        ("/dev/null", "/dev/null: not a camera; see"),
    ],
)
def test_what_does_not_open_is_an_error(location: str, expected: str) -> None:
    said = refusal(CameraError, opening.open_source, location)
    assert (expected in said, "s3cret" in said) == (True, False), said


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"size_wh": (0, 720)}, "size_wh[0] is 0, expected 1 or more"),
        ({"pixel_format": "H264"}, "pixel_format: 'H264', expected 'MJPG' or 'YUYV'"),
        ({"tls_fingerprint": "ab" * 31}, "expected 64 hexadecimal digits, with colons or without"),
        ({"tls_ca_file": "a", "tls_verify": False}, "tls_ca_file and tls_verify = false: expected one of them"),
    ],
)
def test_what_no_source_can_have_is_refused(options: dict[str, Any], expected: str) -> None:
    assert expected in refusal(ConfigError, SourceOptions, **options)


ASKED = SourceOptions(size_wh=(1280, 720), fps=15, pixel_format="MJPG")


def test_a_v4l2_camera_is_asked_for_its_format_first_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, "f", "f", "!")
    assert opencv.open_device("/dev/null").remarks == ()
    capture = opencv.open_device("/dev/null", ASKED)
    assert VideoCapture.opened == [("/dev/null", cv2.CAP_V4L2)] * 2
    assert VideoCapture.calls == [
        (cv2.CAP_PROP_BUFFERSIZE, 2),
        (cv2.CAP_PROP_FOURCC, cv2.VideoWriter.fourcc(*"MJPG")),
        (cv2.CAP_PROP_FRAME_WIDTH, 1280),
        (cv2.CAP_PROP_FRAME_HEIGHT, 720),
        (cv2.CAP_PROP_FPS, 15),
        (cv2.CAP_PROP_BUFFERSIZE, 2),
    ]
    assert (capture.remarks, capture.fps) == ((), 15)
    with pytest.raises(CameraError, match="not a camera"):
        opencv.open_device("/dev/null", ASKED)


def test_what_a_v4l2_camera_does_not_give_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    fourcc = float(cv2.VideoWriter.fourcc(*"YUYV"))
    given = {cv2.CAP_PROP_FRAME_HEIGHT: 960.0, cv2.CAP_PROP_FPS: 10.0, cv2.CAP_PROP_FOURCC: fourcc}
    VideoCapture.gives.update(given)
    assert opencv.open_device("/dev/null", ASKED).remarks == (
        "asked for MJPG, the camera gives YUYV",
        "asked for 1280x720, the camera gives 1280x960",
        "asked for 15 frames a second, the camera gives 10",
    )


# Openings that go on at the same time, each with FFmpeg's options of its own.

VARIABLE = "OPENCV_FFMPEG_CAPTURE_OPTIONS"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of who takes calls, and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=300) as listener:
        yield f"rtsp://127.0.0.1:{listener.getsockname()[1]}/x"


@contextmanager
def _answering(*parts: bytes) -> Iterator[str]:
    """The address of a server that answers one request, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as server:
        listener.settimeout(30)

        def serve() -> None:
            with listener.accept()[0] as connection, suppress(OSError):
                connection.recv(1000)
                for part in parts:
                    connection.sendall(part)

        server.submit(serve)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x"


def _refused(url: str, options: SourceOptions) -> None:
    with pytest.raises(CameraError):
        open_stream(url, options)


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


def test_hanging_openings_hold_up_no_other(tmp_path: Path) -> None:
    film = str(write_video(tmp_path / "a.avi", range(3)))
    ways = [SourceOptions(transport="tcp", open_timeout_s=60.0), SourceOptions(transport="udp", open_timeout_s=60.0)]
    with ThreadPoolExecutor(2) as others, socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = [others.submit(_refused, f"rtsp://127.0.0.1:{silent.getsockname()[1]}/x", way) for way in ways]
        time.sleep(0.3)
        for way in ways:
            with _answering(b"") as url:
                _refused(url.replace("http", "rtsp"), way)
            assert open_file(film) is not None
        assert not any(each.done() for each in hanging)


def test_a_hundred_openings_at_once_each_with_its_own_options(tmp_path: Path, silent: str) -> None:
    """With a file's options a stream is refused at once; with a stream's options a text file plays."""
    text = tmp_path / "a.txt"
    text.write_text("a plain text\n" * 300)

    def open_one(number: int) -> bool:
        if number % 2:
            return open_file(str(text)) is None
        began_s = time.monotonic()
        _refused(silent, SourceOptions(transport="tcp" if number % 4 else "udp", open_timeout_s=1.0))
        return time.monotonic() - began_s > 0.9

    with ThreadPoolExecutor(100) as openings:
        assert all(openings.map(open_one, range(100)))


# Pictures that are too large.

JPEG = cv2.imencode(".jpg", np.random.default_rng(1).integers(0, 255, (37, 53, 3), np.uint8))[1].tobytes()


def test_pictures_that_are_too_large_do_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk.sources.opencv.MAX_SENT_PX", 53 * 37 - 1)
    with (
        _answering(b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\n\r\n" + JPEG) as url,
        pytest.raises(CameraError, match=r"/x: its pictures are 53x37, expected 0\.0 million pixels at most$"),
    ):
        opening.open_source(url)
    with pytest.raises(CameraError, match=r"a\.avi: its pictures are \d+x\d+, expected"):
        opening.open_source(str(write_video(tmp_path / "a.avi", range(3))))


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
    head = b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=f\r\n\r\n"
    part = b"--f\r\nContent-Type: image/jpeg\r\nContent-Length: 1000000000\r\n\r\n" + JPEG[:-2]
    with _answering(head + part, *[b"x" * 1_000_000] * 1000) as url:
        command = [sys.executable, "-c", _OPEN, url]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(run.stdout.splitlines()[-1]) < 300_000
