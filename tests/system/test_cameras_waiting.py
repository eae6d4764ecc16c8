"""Real streams that are waited for: not there yet, gone, back with another size; and why they are not there."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from edge_sdk.camera import OpenedSource, SourceOptions, SourceStatus, ffmpeg_options, open_source
from edge_sdk.camera.opencv import has_gstreamer
from edge_sdk.errors import CameraError
from edge_sdk.frame import Frame
from tests.support.broker import free_port
from tests.support.program import edge_sdk
from tests.support.streams import JPEG, StreamServer, http_server, rtsp_server, true_age_ms

pytestmark = pytest.mark.system

PATIENCE_S = 25.0

both = pytest.mark.parametrize("make_server", [rtsp_server, http_server])


def _until(source: OpenedSource, wanted: Callable[[Frame | None], bool]) -> Frame | None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        frame = source.latest(0.1)
        if wanted(frame):
            return frame
    raise AssertionError(f"not seen within {PATIENCE_S} s; {source.status}, {source.trouble!r}, {source.stats}")


@both
def test_a_stream_that_is_not_there_yet_is_waited_for(make_server: Callable[..., StreamServer]) -> None:
    with make_server() as server:
        server.kill()
        before = time.monotonic()
        with closing(open_source(server.url(login="bob@"), password="s3cret", waits=True)) as source:
            assert time.monotonic() - before < 2, "it did not return at once"
            assert source.status is SourceStatus.OPENING
            assert source.latest(0) is None
            _until(source, lambda _: source.trouble == "connection refused")
            assert not source.ended
            assert source.fps == 25
            server.start()
            _until(source, lambda frame: frame is not None)
            assert source.status is SourceStatus.OPENED
            assert source.trouble == ""
            assert source.stats.reopenings == 0
            server.kill()
            _until(source, lambda _: source.status is SourceStatus.LOST and source.trouble == "connection refused")
            server.start()
            _until(source, lambda frame: frame is not None)
            assert source.status is SourceStatus.REOPENED
            assert source.trouble == ""


@both
def test_the_first_frame_is_fresh(make_server: Callable[..., StreamServer]) -> None:
    """What a stream kept while it opened is left out: frames of up to a third of a second, of an RTSP camera."""
    with make_server() as server, closing(open_source(server.url())) as watching:
        _until(watching, lambda frame: frame is not None)  # the camera is at work before the others come
        time.sleep(0.5)
        ages_ms = []
        for _ in range(5):
            with closing(open_source(server.url())) as source:
                frame = _until(source, lambda frame: frame is not None)
                assert frame is not None
                ages_ms.append(true_age_ms(frame))
        # Three periods; a machine that does much else delays some of them.
        assert min(ages_ms) < 120, ages_ms


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_rtsp_over_both_transports(transport: str) -> None:
    def udp_sockets() -> int:
        """Of this process: others on this machine open some too."""
        tables = (Path(f"/proc/self/net/{name}").read_text() for name in ("udp", "udp6"))
        udp = {f"socket:[{line.split()[9]}]" for table in tables for line in table.splitlines()}
        return sum(str(link.readlink()) in udp for link in Path("/proc/self/fd").iterdir() if link.is_symlink())

    with rtsp_server() as server:
        before = udp_sockets()
        options = SourceOptions(transport="udp" if transport == "udp" else "tcp")
        variable = os.environ.get("OPENCV_FFMPEG_CAPTURE_OPTIONS", ffmpeg_options._AS_WITHOUT)
        with closing(open_source(server.url(), options=options)) as source:
            for _ in range(10):
                assert _until(source, lambda frame: frame is not None)
            # For RTP and for RTCP.
            assert udp_sockets() - before == (2 if transport == "udp" else 0)
            assert os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] == variable


def test_a_page_is_no_video() -> None:
    with http_server() as server, pytest.raises(CameraError, match="it answers, but with no video that can be read"):
        open_source(server.url("/page"))


def test_mjpeg_over_rtsp() -> None:
    with rtsp_server(encoder=JPEG) as server, closing(open_source(server.url())) as source:
        for _ in range(20):
            frame = _until(source, lambda frame: frame is not None and true_age_ms(frame) < 1000)
            assert frame is not None
            assert frame.size_wh == (640, 480)


def test_an_rtsp_server_that_comes_back_with_another_size() -> None:
    with rtsp_server(size_wh=(640, 480)) as server, closing(open_source(server.url())) as source:
        frame = _until(source, lambda frame: frame is not None)
        assert frame is not None
        assert frame.size_wh == (640, 480)
        server.kill()
        with rtsp_server(size_wh=(320, 240), port=server.port):
            _until(source, lambda frame: frame is not None and frame.size_wh == (320, 240))
            assert source.status is SourceStatus.REOPENED


def test_many_cameras_in_one_process() -> None:
    """One that is not there and one that never answers hold up nobody for long, whatever they ask FFmpeg for."""
    with rtsp_server() as rtsp, http_server() as http, socket.create_server(("127.0.0.1", 0)) as silent:
        dead, mute = f"rtsp://127.0.0.1:{free_port()}/x", f"rtsp://127.0.0.1:{silent.getsockname()[1]}/x"
        udp = SourceOptions(transport="udp")
        wanted = [(rtsp.url(), SourceOptions()), (rtsp.url(), udp), (http.url(), SourceOptions()), ("pattern", udp)]
        with ExitStack() as stack:
            absent = [stack.enter_context(closing(open_source(url, waits=True))) for url in (dead, mute)]
            sources = [
                stack.enter_context(closing(open_source(url, camera=f"number {number}", options=options, waits=True)))
                for number, (url, options) in enumerate(wanted)
            ]
            for number, source in enumerate(sources):
                frame = _until(source, lambda frame: frame is not None)
                assert frame is not None
                assert frame.camera == f"number {number}"
            for source in sources:
                assert _until(source, lambda frame: frame is not None)
            _until(absent[0], lambda _: absent[0].trouble == "connection refused")
            _until(absent[1], lambda _: absent[1].trouble == "no answer within 3 s")
            assert {source.status for source in absent} == {SourceStatus.OPENING}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:{port}", "connection refused"),
        ("[::1]:{port}", "connection refused"),
        ("no-such-host.invalid", "host unknown"),
        ("a..b", "host unknown"),
    ],
)
@pytest.mark.parametrize("scheme", ["rtsp", "http", "rtsps", "https"])
def test_why_nobody_answers(scheme: str, host: str, expected: str) -> None:
    url = f"{scheme}://bob:s3cret@{host.replace('{port}', str(free_port()))}/live"
    with pytest.raises(CameraError) as caught:
        open_source(url)
    message = str(caught.value)
    if "[::1]" in host and "refused" not in message:
        pytest.skip("no IPv6 here")
    assert f": {expected}; check that the camera is on" in message
    assert "s3cret" not in message
    assert "bob" not in message


@pytest.mark.parametrize(
    ("answer", "scheme", "expected"),
    [
        (b"RTSP/1.0 404 Not Found\r\n\r\n", "rtsp", "there is nothing at this path (404)"),
        (b"RTSP/1.0 503 Service Unavailable\r\n\r\n", "rtsp", "it answers with error 503"),
        (b"RTSP/1.0 401 Unauthorized\r\n\r\n", "rtsp", "user or password refused"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "rtsp", "something else than RTSP answers there"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "http", "user or password refused"),
        (b"HTTP/1.1 500 Oops\r\n\r\n", "http", "it answers with error 500"),
        (b"", "http", "it hangs up without an answer"),
    ],
)
def test_what_a_server_answers_is_said(answer: bytes, scheme: str, expected: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"{scheme}://bob@127.0.0.1:{listener.getsockname()[1]}/live?key=s3cret"
        with pytest.raises(CameraError) as caught:
            open_source(url, password="s3cret")
        thread.join(30)
    assert f": {expected}; check that the camera is on" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("waits", [False, True])
def test_close_while_an_opening_hangs(waits: bool) -> None:
    """Half a second; the thread goes on alone until its time-out, and leaves nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"rtsp://127.0.0.1:{silent.getsockname()[1]}/x"
        if waits:
            source = open_source(url, camera="mute", waits=True)
            time.sleep(0.2)
            before = time.monotonic()
            source.close()
            assert time.monotonic() - before < 1.5
            assert source.ended
            assert source.latest(10) is None
        else:
            with pytest.raises(CameraError, match=r"no answer within 0\.2 s"):
                open_source(url, options=SourceOptions(open_timeout_s=0.2))
        deadline = time.monotonic() + PATIENCE_S
        while any(thread.name == "camera mute" for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.02)


@both
def test_descriptors_that_run_out_are_survived(make_server: Callable[..., StreamServer]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with make_server() as server, closing(open_source(server.url())) as source:
        _until(source, lambda frame: frame is not None)
        server.kill()
        _until(source, lambda frame: source.status is SourceStatus.LOST and frame is None)
        server.start()
        # The server's pipe took what was free: what is open stays open, and nothing more can be opened.
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            _until(source, lambda _: source.trouble == "too many open files in this process")
            assert not source.ended
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        _until(source, lambda frame: frame is not None and source.status is SourceStatus.REOPENED)
        assert source.trouble == ""


_RUN_OUT = """
import resource, sys
from edge_sdk.camera import open_source
from edge_sdk.errors import CameraError
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
try:
    open_source(sys.argv[1])
except CameraError as error:
    print(error)
finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)  # what measures the tests' coverage ends with a file
"""


def test_descriptors_that_ran_out_before_it_opened(tmp_path: Path) -> None:
    for location in (f"http://127.0.0.1:{free_port()}/x", "/dev/null"):
        command = [sys.executable, "-c", _RUN_OUT, location]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert run.stdout.startswith(f"{location}: too many open files in this process; ")
        assert run.stderr == ""


def test_the_program_without_a_camera(cell_bundle: Path) -> None:
    run = edge_sdk("run", cell_bundle, "--source", "pattern:320x240@50", "--frames", 5, "--no-tune")
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 5
    for location, code, expected in (
        ("pattern:x", 1, "pattern:x: expected pattern, pattern:1280x720"),
        ("gst:videotestsrc user-pw=s3cret", 8, "gst:videotestsrc: this OpenCV was built without GStreamer"),
        ("picamera2", 8, "`sudo apt install python3-picamera2`"),
    ):
        if code == 8 and (has_gstreamer() or find_spec("picamera2")):
            continue
        run = edge_sdk("run", cell_bundle, "--source", location)
        assert run.returncode == code
        assert expected in run.stderr.splitlines()[-1]
        assert "s3cret" not in run.stderr
        assert "Traceback" not in run.stderr
