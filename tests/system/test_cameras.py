"""Real streams: RTSP and HTTP servers that are absent, killed, paused, restarted, slow or strange."""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from edge_sdk.core.errors import CameraError
from edge_sdk.core.frame import Frame
from edge_sdk.sources.location import AS_IT_COMES, SourceOptions
from edge_sdk.sources.opencv import has_gstreamer
from edge_sdk.sources.opening import open_source
from edge_sdk.sources.slot import OpenedSource, SourceStatus
from tests.support import streams
from tests.support.broker import free_port, wait_until
from tests.support.certificates import Authority
from tests.support.logs import refusal
from tests.support.pictures import number_in
from tests.support.service import open_cameras, open_descriptors
from tests.support.streams import StreamServer, http_pipeline, http_server, rtsp_pipeline, rtsp_server, true_age_ms

pytestmark = pytest.mark.system

PASSWORD = "p@s/s:w%rd#?"
PATIENCE_S = 120.0  # until a test gives up: only a guard
TIMED_OUT_S = 25.0  # below the 30 s that OpenCV waits where no time-out is set
needs_gstreamer = pytest.mark.skipif(not has_gstreamer(), reason=streams.NO_GSTREAMER)
pipelines = [pytest.param(make_server, marks=needs_gstreamer) for make_server in (rtsp_pipeline, http_pipeline)]
both = pytest.mark.parametrize("make_server", [rtsp_server, http_server])
each = pytest.mark.parametrize("make_server", [rtsp_server, http_server, *pipelines])
over_http = pytest.mark.parametrize("make_server", [http_server, pipelines[1]])

every_way = pytest.mark.parametrize(
    ("make_server", "options"),
    [
        pytest.param(rtsp_server, AS_IT_COMES, id="rtsp over tcp"),
        pytest.param(rtsp_server, SourceOptions(transport="udp"), id="rtsp over udp"),
        pytest.param(http_server, AS_IT_COMES, id="http"),
        pytest.param(rtsp_pipeline, AS_IT_COMES, id="rtsp by gstreamer", marks=needs_gstreamer),
        pytest.param(http_pipeline, AS_IT_COMES, id="http by gstreamer", marks=needs_gstreamer),
    ],
)


def _until(source: OpenedSource, wanted: Callable[[Frame | None], bool]) -> Frame | None:
    """Step like the loop does until a step's frame (or None) is as wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        asked = time.monotonic()
        frame = source.latest(0.1)
        assert time.monotonic() - asked < 20, "latest() did not keep its time-out"
        if wanted(frame):
            return frame
    raise AssertionError(f"not seen within {PATIENCE_S} s; {source.status}, {source.stats}")


def _is_fresh(frame: Frame | None) -> bool:
    return frame is not None and true_age_ms(frame) < 1000


def _claimed_ms(frame: Frame) -> float:
    return (time.monotonic_ns() - frame.captured_ns) / 1e6


@pytest.mark.smoke
@each
def test_frames_are_fresh_and_say_how_old_they_are(make_server: Callable[[], StreamServer]) -> None:
    with make_server() as server, closing(open_source(server.url(), camera="door")) as source:
        seqs, honest, deadline = [], 0, time.monotonic() + PATIENCE_S
        while honest < 5:  # a machine that does much else delays most on their way, and they do not know it
            frame = _until(source, _is_fresh)
            assert frame is not None
            seqs.append(frame.seq)
            # Only a guard against clocks that are mixed up.
            assert abs(time.time() - frame.captured_at - _claimed_ms(frame) / 1000) < 10
            honest += true_age_ms(frame) - _claimed_ms(frame) < 30
            assert time.monotonic() < deadline, "they say that they are younger than they are"
        assert seqs == sorted(set(seqs))
        assert source.status is SourceStatus.OPENED
    assert open_cameras() == []


@pytest.mark.smoke
@every_way
def test_a_server_that_dies_and_comes_back(make_server: Callable[[], StreamServer], options: SourceOptions) -> None:
    with make_server() as server, closing(open_source(server.url(), options=options)) as source:
        _until(source, _is_fresh)
        server.kill()
        _until(source, lambda frame: source.status is SourceStatus.LOST and frame is None)
        _until(source, lambda _: source.trouble == "connection refused")
        assert not source.ended
        server.start()
        _until(source, lambda frame: source.status is SourceStatus.REOPENED and _is_fresh(frame))
        assert (source.trouble, source.stats.reopenings >= 1) == ("", True)
    assert open_cameras() == []


@every_way
def test_a_frozen_server_blocks_nobody(make_server: Callable[[], StreamServer], options: SourceOptions) -> None:
    with make_server() as server, closing(open_source(server.url(), options=options)) as source:
        _until(source, _is_fresh)
        server.pause()
        _until(source, lambda frame: frame is None)
        _until(source, lambda frame: source.status is SourceStatus.LOST)
        server.go_on()
        _until(source, lambda frame: source.status is SourceStatus.REOPENED and _is_fresh(frame))


@each
def test_close_while_the_server_is_frozen(make_server: Callable[[], StreamServer]) -> None:
    with make_server() as server:
        open_source(server.url()).close()  # what OpenCV opens once and keeps
        descriptors = open_descriptors()
        with closing(open_source(server.url())) as source:
            _until(source, _is_fresh)
            server.pause()
            _until(source, lambda frame: frame is None)
        # Closing does not wait for it: it goes on alone until its time-out, and leaves nothing.
        wait_until(lambda: open_cameras() == [], "the end of its thread", TIMED_OUT_S)
        assert open_descriptors() <= descriptors


@over_http
def test_a_size_that_changes_mid_stream(make_server: Callable[[], StreamServer]) -> None:
    """OpenCV alone scales what comes to the first size; before 4.13 it handed out the last old picture for ever."""
    with make_server() as server, closing(open_source(server.url("/grows"))) as source:
        numbers, sizes_wh = set(), set()
        for _ in range(40):
            frame = _until(source, _is_fresh)
            assert frame is not None
            numbers.add(number_in(frame.image))
            sizes_wh.add(frame.size_wh)
        assert (640, 480) in sizes_wh
        assert sizes_wh <= {(320, 240), (640, 480)}
        assert len(numbers) > 20
        assert source.status is SourceStatus.OPENED


@both
def test_a_password_opens_and_a_wrong_one_does_not(make_server: Callable[[str], StreamServer]) -> None:
    with make_server(PASSWORD) as server:
        with closing(open_source(server.url(login="bob@"), password=PASSWORD)) as source:
            _until(source, _is_fresh)
        assert "user or password refused; check" in _refusal(server.url(login="bob@"), "s3cret")
        assert "it wants a user and a password; check" in _refusal(server.url())


@both
def test_a_camera_known_by_its_fingerprint(make_server: Callable[..., StreamServer], tmp_path: Path) -> None:
    """Real servers; what is refused, and that nothing is sent then, tests/unit/sources/test_camera_relay.py shows."""
    issued = Authority(tmp_path).issue("camera")
    known = sha256(ssl.PEM_cert_to_DER_cert(issued.cert_file.read_text())).hexdigest()
    with make_server(PASSWORD, tls=issued) as server:
        options = SourceOptions(tls_fingerprint=known)
        with closing(open_source(server.url(login="bob@"), password=PASSWORD, options=options)) as source:
            for _ in range(10):
                _until(source, _is_fresh)
        with pytest.raises(CameraError, match="its certificate is not trusted"):
            open_source(server.url(login="bob@"), password=PASSWORD)


@pytest.mark.parametrize("path", ["/one", "/slow"])
def test_an_only_picture_that_came_while_the_stream_opened_is_delivered(path: str) -> None:
    """0.3 s after it was asked for, and then the end, or none for 45 s: each came never, or after those."""
    options = SourceOptions(read_timeout_s=60)
    with http_server() as server, closing(open_source(server.url(path), options=options, waits=True)) as source:
        assert source.latest(30) is not None


@pytest.mark.parametrize("fps", [5, 25])
def test_a_picture_that_came_with_the_next_one_says_so(fps: int) -> None:
    """FFmpeg returns H.264 a period late: all were claimed to be 1 ms old, and were 200."""
    with rtsp_server(fps=fps) as server, closing(open_source(server.url())) as source:
        less_ms, deadline = list[float](), time.monotonic() + PATIENCE_S
        while sum(abs(value) < 20 for value in less_ms) < 10:
            frame = _until(source, lambda frame: frame is not None and frame.delay_ns > 0)
            assert frame is not None
            less_ms.append(true_age_ms(frame) - _claimed_ms(frame))
            assert time.monotonic() < deadline, less_ms


@both
def test_the_first_frame_is_fresh(make_server: Callable[..., StreamServer]) -> None:
    """What a stream kept while it opened is left out: frames of up to a third of a second, of an RTSP camera."""
    with make_server() as server, closing(open_source(server.url())) as watching:
        _until(watching, lambda frame: frame is not None)  # the camera is at work before the others come
        for _ in range(10):
            _until(watching, lambda frame: frame is not None)
        ages_ms, deadline = [1e9], time.monotonic() + PATIENCE_S
        while min(ages_ms) >= 120:  # three periods; a machine that does much else delays some of them
            assert time.monotonic() < deadline, ages_ms
            with closing(open_source(server.url())) as source:
                frame = _until(source, lambda frame: frame is not None)
                assert frame is not None
                ages_ms.append(true_age_ms(frame))


def _refusal(url: str, password: str | None = None, **options: float) -> str:
    """What is said of a camera that does not open, in which no secret is."""
    said = refusal(CameraError, open_source, url, password=password, options=SourceOptions(**options))
    assert "s3cret" not in said
    assert "bob" not in said
    return said


def test_a_page_is_no_video() -> None:
    with http_server() as server:
        assert "it answers, but with no video that can be read" in _refusal(server.url("/page"))


@pytest.mark.parametrize(
    ("scheme", "host", "expected"),
    [
        ("rtsp", "127.0.0.1:{port}", "connection refused"),
        ("https", "127.0.0.1:{port}", "connection refused"),
        ("http", "no-such-host.invalid", "host unknown"),
        ("rtsps", "a..b", "host unknown"),
    ],
)
def test_why_nobody_answers(scheme: str, host: str, expected: str) -> None:
    url = f"{scheme}://bob:s3cret@{host.replace('{port}', str(free_port()))}/live"
    assert f": {expected}; check that the camera is on" in _refusal(url)


@pytest.mark.parametrize(
    ("answer", "scheme", "expected"),
    [
        (b"RTSP/1.0 404 Not Found\r\n\r\n", "rtsp", "there is nothing at this path (404)"),
        (b"RTSP/1.0 401 Unauthorized\r\n\r\n", "rtsp", "user or password refused"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "rtsp", "something else than RTSP answers there"),
        (b"HTTP/1.1 500 Oops\r\n\r\n", "http", "it answers with error 500"),
        (b"", "http", "it hangs up without an answer"),
    ],
)
def test_what_a_server_answers_is_said(answer: bytes, scheme: str, expected: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"{scheme}://bob@127.0.0.1:{listener.getsockname()[1]}/live?key=s3cret"
        assert f": {expected}; check that the camera is on" in _refusal(url, "s3cret")
        thread.join(30)


def test_somebody_who_listens_and_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for scheme in ("rtsp", "rtsps", "http"):
            url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/x"
            assert f"{url}: no answer within 0.2 s" in _refusal(url, open_timeout_s=0.2)
