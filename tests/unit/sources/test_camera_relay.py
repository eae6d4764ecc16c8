"""What FFmpeg gets of a network camera, and where it may be led: TLS, redirects, lengths, playlists."""

import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from hashlib import sha256
from itertools import product
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_sdk.core.errors import CameraError
from edge_sdk.sources.location import SourceOptions, UntrustedError, address_of
from edge_sdk.sources.opening import open_source
from edge_sdk.sources.relay import Relay
from tests.support.certificates import Authority, Issued
from tests.support.logs import refusal

PASSWORD = "s3cret"
JPEG = cv2.imencode(".jpg", np.zeros((24, 32, 3), np.uint8))[1].tobytes()
PART = b"--f\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%b\r\n" % (len(JPEG), JPEG)
VIDEO = b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=f\r\n\r\n" + PART * 5
LOGIN_PLEASE = b'HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm="c"\r\nContent-Length: 0\r\n\r\n'


class Server:
    """Answers each request as it is told to, keeps it in `asked`, and hangs up after those in HTTP or, if told so, all.

    It shows the first of some certificates to the first client, and so on; the last one to all others.
    """

    def __init__(
        self, answer: Callable[[bytes], bytes], host: str = "127.0.0.1", *, tls: tuple[Issued, ...] = (),
        hangs_up: bool = False,
    ) -> None:  # fmt: skip
        self._answer, self._tls, self._hangs_up = answer, [*tls], hangs_up
        self.asked: list[bytes] = []
        self._listener = socket.create_server((host, 0))
        self.at = f"{host}:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        if self._tls:
            issued = self._tls.pop(0) if len(self._tls) > 1 else self._tls[0]
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(issued.cert_file, issued.key_file)
            connection = context.wrap_socket(connection, server_side=True)
        with connection:
            connection.settimeout(10)
            while data := connection.recv(10_000):
                self.asked.append(data)
                connection.sendall(self._answer(data))
                if self._hangs_up or data.startswith(b"GET"):
                    return


def _redirect(location: str, _request: bytes) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n".encode()


def _rtsp(request: bytes, status: str, header: str = "") -> bytes:
    """The answer to a request, with a line of its head."""
    number = request.partition(b"CSeq: ")[2].partition(b"\r\n")[0].decode()
    return f"RTSP/1.0 {status}\r\nCSeq: {number}\r\n{header and header + chr(13) + chr(10)}\r\n".encode()


LOGIN_FIRST = "401 No", 'WWW-Authenticate: Basic realm="c"'
Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(closing(Server(*arguments, **options)))


def _refusal(url: str, options: SourceOptions | None = None, password: str | None = None) -> str:
    options = options or SourceOptions(open_timeout_s=20)
    return refusal(CameraError, open_source, url, options=options, password=password)


def _gives_frames(url: str, options: SourceOptions | None = None, password: str | None = None) -> bool:
    with closing(open_source(url, options=options or SourceOptions(), password=password)) as source:
        return source.latest(10) is not None


def test_a_redirect_to_another_server_another_port_or_a_file_is_refused(serve: Serve, tmp_path: Path) -> None:
    there, port = serve(lambda _: VIDEO, "127.0.0.2"), serve(lambda _: VIDEO)
    (tmp_path / "a.jpg").write_bytes(JPEG)
    locations = [form.format(there.at) for form in ("http://{}/v", "//{}/v", "HTTP://{}/v", "rtsp://{}/v")]
    locations += [f"http://{port.at}/v", f"1,x://{port.at}/v", f"file:{tmp_path}/a.jpg", "subfile,,:/etc/passwd"]
    for location in locations:
        here = serve(partial(_redirect, location))
        assert "it redirects to another server, " in _refusal(f"http://bob@{here.at}/v", password=PASSWORD), location
    assert there.asked == port.asked == []


@pytest.mark.parametrize("moment", [b"OPTIONS", b"DESCRIBE", b"Authorization"])
def test_an_rtsp_redirect_to_another_server_is_refused(serve: Serve, moment: bytes) -> None:
    there = serve(lambda _: b"RTSP/1.0 404 No\r\n\r\n", "127.0.0.2")

    def answer(request: bytes) -> bytes:
        if moment in request:
            return _rtsp(request, "302 Moved", f"Loc\ration: rtsp://{there.at}/v")
        return _rtsp(request, *LOGIN_FIRST) if b"DESCRIBE" in request else _rtsp(request, "200 OK")

    here = serve(answer)
    said = _refusal(f"rtsp://bob@{here.at}/v", password=PASSWORD)
    assert f"it redirects to another server, rtsp://{there.at}/v; give that address" in said
    assert there.asked == []
    assert here.asked


def test_a_redirect_that_is_allowed_is_followed(serve: Serve) -> None:
    there = serve(lambda _: VIDEO, "127.0.0.2")
    here = serve(partial(_redirect, f"http://{there.at}/v?x=1"))
    assert _gives_frames(f"http://{here.at}/v", SourceOptions(allow_other_hosts=True))
    assert there.asked[0].startswith(b"GET /v?x=1 HTTP/1.1\r\nHost: %b\r\n" % there.at.encode())


@pytest.mark.parametrize("location", ["/video", "video", "http://{}/video"])
def test_a_redirect_at_the_same_server_is_followed(serve: Serve, location: str) -> None:
    here: Server = serve(lambda asked: VIDEO if b"GET /video " in asked else _redirect(location.format(here.at), asked))
    assert _gives_frames(f"http://{here.at}/")


@pytest.mark.parametrize("leads", ["elsewhere", "to the same server"])
def test_an_rtsp_redirect_that_may_be_followed_is(serve: Serve, leads: str) -> None:
    def answer(request: bytes) -> bytes:
        there = elsewhere if leads == "elsewhere" else here
        return _rtsp(request, "404" if b"/new " in request else "302", f"Location: rtsp://{there.at}/new")

    elsewhere, here = serve(answer, "127.0.0.2"), serve(answer)
    options = SourceOptions(allow_other_hosts=leads == "elsewhere", open_timeout_s=20)
    assert "there is nothing at this path (404)" in _refusal(f"rtsp://{here.at}/old", options)


def test_a_camera_that_redirects_for_ever_is_refused(serve: Serve) -> None:
    here: Server = serve(lambda request: _rtsp(request, "302", f"Location: rtsp://{here.at}/v"))
    assert "it redirects more than 8 times; give the address" in _refusal(f"rtsp://{here.at}/v")
    assert len(here.asked) == 9


def test_a_playlist_is_refused(serve: Serve) -> None:
    there = serve(lambda _: VIDEO, "127.0.0.2")
    lines = ("#EXTM3U", "#EXT-X-TARGETDURATION:2", "#EXTINF:2,", f"http://{there.at}/a.ts", "#EXT-X-ENDLIST")
    for kind, said in (("vnd.apple.mpegURL", "it is a playlist (HLS)"), ("octet-stream", "no video that can be read")):
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/{kind}\r\n\r\n"
        here = serve(lambda _, head=head: (head + "\n".join(lines)).encode())
        assert said in _refusal(f"http://{here.at}/live.m3u8")
    assert there.asked == []


def test_the_camera_is_asked_by_its_own_name_and_for_one_answer(serve: Serve) -> None:
    here = serve(_answer_to_bob)
    assert _gives_frames(f"http://bob@{here.at}/v?x=1", password=PASSWORD)
    for request in here.asked:
        assert request.startswith(b"GET /v?x=1 HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n" % here.at.encode())
        assert request.count(b"Host:") == request.count(b"Connection:") == 1


# By hand in FFmpeg's place.


def _passed_on(answer: bytes, request: bytes, serve: Serve) -> tuple[bytes, CameraError | None]:
    server = serve(lambda _: answer, hangs_up=True)
    relay = Relay(address_of(f"rtsp://{server.at}/v"), SourceOptions())
    host, port = relay.authority.rsplit(":", 1)
    with closing(relay), socket.create_connection((host, int(port)), 10) as client:
        client.sendall(request)
        came = bytearray()
        while data := client.recv(10_000):
            came += data
    return bytes(came), relay.trouble


def test_a_length_that_no_answer_has_is_refused_before_ffmpeg_takes_memory_for_it(serve: Serve) -> None:
    head = b"RTSP/1.0 200 OK\r\nCSeq: 1\r\nContent-Length: %d\r\n\r\n"
    came, trouble = _passed_on(head % 2_000_000_000 + b"x" * 1000, b"OPTIONS", serve)
    assert (came, str(trouble)) == (b"", "it announces an answer of 2000000000 bytes, expected 1048576 at most")
    whole = head % 4 + b"body"
    assert _passed_on(whole, b"OPTIONS", serve) == (whole, None)


@pytest.mark.parametrize(
    "answer",
    [
        b"RTSP/1.0 200 OK\r\nX: " + b"x" * 70_000,
        b"RTSP/1.0 200 OK\r\n$\0\0\1x\r\n\r\n",
        b"\r$\1\1\1x\r\nContent-Length: 4\r\n\r\nbody",
        b"RTSP/1.0 200 OK\r\nA: \0\r\n\r\n",
        b"RTSP/1.0 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody",
        b"RTSP/1.0 200 OK\r\nContent-Length: -5\r\n\r\n",
    ],
)
def test_an_answer_that_ffmpeg_may_read_in_another_way_is_refused(serve: Serve, answer: bytes) -> None:
    came, trouble = _passed_on(answer, b"OPTIONS", serve)
    assert (came, type(trouble)) == (b"", UntrustedError)


def test_packets_between_answers_and_whatever_comes_once_it_plays_are_passed_on_as_they_are(serve: Serve) -> None:
    packet = b"$\0\0\6\r\n\r\n$$"
    answers = b"RTSP/1.0 200 OK\r\nCSeq: 1\r\n\r\n" + packet * 3 + b"RTSP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n$$"
    assert _passed_on(answers, b"SETUP", serve) == (answers, None)
    playing = packet + b"Location: rtsp://other/\r\n\r\n" + b"RTSP/1.0 200 OK\r\nContent-Length: 9999999999\r\n\r\n"
    assert _passed_on(playing, b"PLAY rtsp://", serve) == (playing, None)


def test_answers_are_read_however_they_are_cut_up() -> None:
    chance = random.Random(1)
    message = b"RTSP/1.0 200 OK\r\nCSeq: 1\r\nContent-Length: 7\r\n\r\nv=0\r\n\r\n" + b"$\0\0\3abc" * 2
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = Relay(address_of(f"rtsp://127.0.0.1:{listener.getsockname()[1]}/"), SourceOptions())
        host, port = relay.authority.rsplit(":", 1)
        with closing(relay), socket.create_connection((host, int(port)), 10) as client, listener.accept()[0] as camera:
            camera.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(50):
                left = message
                while left:
                    cut = chance.randint(1, len(left))
                    camera.sendall(left[:cut])
                    left = left[cut:]
                    time.sleep(0.0002)
                came = b""
                while len(came) < len(message):
                    came += client.recv(1000)
                assert came == message


def test_over_udp_ffmpeg_reports_to_the_camera_and_nobody_else(serve: Serve) -> None:
    head = b"RTSP/1.0 200 OK\r\nTransport: RTP/AVP;unicast;client_port=1-2;%bserver_port=3-4\r\n\r\n"
    for source in (b"", b"source=203.0.113.7;"):
        came, _ = _passed_on(head % source, b"SETUP", serve)
        assert b"Transport: RTP/AVP;unicast;client_port=1-2;server_port=3-4;source=127.0.0.1\r\n" in came


# TLS.


def _fingerprint(issued: Issued) -> str:
    return sha256(ssl.PEM_cert_to_DER_cert(issued.cert_file.read_text())).hexdigest()


def _with_colons(fingerprint: str) -> str:
    return ":".join(fingerprint[at : at + 2] for at in range(0, 64, 2)).upper()


def _answer_to_bob(request: bytes) -> bytes:
    return VIDEO if b"Authorization: Basic" in request else LOGIN_PLEASE


class Site:
    """A camera over https with a certificate, and what one may know of that."""

    def __init__(self, serve: Serve, folder: Path) -> None:
        self.authority, other = Authority(folder), Authority(folder, "other")
        self.good = self.authority.issue("camera", ("127.0.0.1",))
        self.misnamed = self.authority.issue("misnamed", ("elsewhere",))
        self.expired = self.authority.issue("expired", ("127.0.0.1",), days=(-10, -1))
        self.foreign = other.issue("foreign", ("127.0.0.1",))
        self._serve = serve

    def camera(self, *certificates: Issued) -> Server:
        return self._serve(_answer_to_bob, tls=certificates)


@pytest.fixture
def site(serve: Serve, tmp_path: Path) -> Site:
    return Site(serve, tmp_path)


def test_a_certificate_that_nobody_vouches_for_gets_no_password_and_its_fingerprint_is_said(site: Site) -> None:
    camera = site.camera(site.good)
    said = _refusal(f"https://bob@{camera.at}/v", password=PASSWORD)
    assert "its certificate is not trusted (" in said
    assert f"its SHA-256 fingerprint is {_with_colons(_fingerprint(site.good))}; give it as tls_fingerprint" in said
    assert "check that the camera is on" not in said
    assert camera.asked == []


@pytest.mark.parametrize(
    ("shows", "knows", "expected"),
    [
        ("foreign", "authority", "its certificate is not trusted ("),
        ("misnamed", "authority", "IP address mismatch"),
        ("expired", "authority", "certificate has expired; this device's clock says 20"),
        ("foreign", "fingerprint", "its certificate is another one: SHA-256 fingerprint "),
    ],
)
def test_another_certificate_gets_no_password(site: Site, shows: str, knows: str, expected: str) -> None:
    camera = site.camera(getattr(site, shows))
    options = SourceOptions(tls_ca_file=site.authority.file)
    if knows == "fingerprint":
        options = SourceOptions(tls_fingerprint=_fingerprint(site.good))
    assert expected in _refusal(f"https://bob@{camera.at}/v", options, PASSWORD)
    assert camera.asked == []


def test_a_certificate_is_trusted_by_its_fingerprint_its_authority_or_unseen(site: Site) -> None:
    for issued, write in product((site.good, site.misnamed, site.expired), (str, _with_colons)):
        options = SourceOptions(tls_fingerprint=write(_fingerprint(issued)))
        assert _gives_frames(f"https://bob@{site.camera(issued).at}/v", options, PASSWORD)
    options = SourceOptions(tls_ca_file=site.authority.file)
    assert _gives_frames(f"https://bob@{site.camera(site.good).at}/v", options, PASSWORD)
    assert _gives_frames(f"https://bob@{site.camera(site.foreign).at}/v", SourceOptions(tls_verify=False), PASSWORD)


def test_each_connection_is_verified_and_not_the_first_alone(site: Site) -> None:
    """FFmpeg is asked for the login through one connection, and shows it through the next."""
    camera = site.camera(site.good, site.foreign)
    options = SourceOptions(tls_fingerprint=_fingerprint(site.good))
    assert "its certificate is another one" in _refusal(f"https://bob@{camera.at}/v", options, PASSWORD)
    assert len(camera.asked) == 1
    assert b"Authorization" not in camera.asked[0]


def test_a_redirect_to_what_is_not_encrypted_is_refused_though_others_are_allowed(site: Site, serve: Serve) -> None:
    there = serve(lambda _: VIDEO, "127.0.0.2")
    camera = serve(partial(_redirect, f"http://{there.at}/v"), tls=(site.good,))
    options = SourceOptions(tls_ca_file=site.authority.file, allow_other_hosts=True)
    assert "it redirects to another server" in _refusal(f"https://{camera.at}/v", options)
    assert there.asked == []


def test_who_speaks_no_tls_is_said(serve: Serve) -> None:
    plain = serve(lambda _: VIDEO)
    said = _refusal(f"https://{plain.at}/v", SourceOptions(tls_verify=False))
    assert "; is it another port, or http:// without the s?" in said


def test_a_file_of_authorities_that_is_none(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"x")
    for name, said in (("none.pem", "cannot be read: No such file"), ("ca.pem", "is no PEM file of CA certificates")):
        options = SourceOptions(tls_ca_file=tmp_path / name)
        assert f"{tmp_path / name} (tls_ca_file) {said}" in _refusal(f"https://{serve(lambda _: VIDEO).at}/v", options)
