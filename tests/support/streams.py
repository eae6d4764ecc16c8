"""Real stream servers, each a process of its own: RTSP by gst-rtsp-server, MJPEG over HTTP by http.server.

Every picture carries the wall clock in milliseconds (modulo 65536) as bars, so that its true age can be read.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from edge_sdk.frame import Frame
from tests.support.absent import not_installed
from tests.support.broker import free_port
from tests.support.certificates import Issued
from tests.support.pictures import number_in

_ROOT = Path(__file__).parents[2]  # where `tests` is imported from
SYSTEM_PYTHON = "/usr/bin/python3"  # Debian's, which has GStreamer's bindings

_RTSP = """
import sys, time, gi
gi.require_version("Gst", "1.0"); gi.require_version("GstRtspServer", "1.0"); gi.require_version("GstApp", "1.0")
from gi.repository import Gio, GLib, Gst, GstApp, GstRtspServer
Gst.init(None)
port, password, encoder = sys.argv[1:4]
W, H, FPS = (int(argument) for argument in sys.argv[4:7])
certificate = sys.argv[7:9]
LAUNCH = (
    f"( appsrc name=clock is-live=true format=time do-timestamp=true "
    f"caps=video/x-raw,format=GRAY8,width={W},height={H},framerate={FPS}/1 ! videoconvert ! video/x-raw,format=I420 "
    f"! {encoder} )"
)
def picture():
    number = int(time.time() * 1000) % 65536
    row = bytes(235 if number >> (x * 16 // W) & 1 else 16 for x in range(W))
    return row * H
def push(source):
    return source.emit("push-buffer", Gst.Buffer.new_wrapped(picture())) == Gst.FlowReturn.OK
def configure(factory, media):
    GLib.timeout_add(1000 // FPS, push, media.get_element().get_by_name("clock"))
factory = GstRtspServer.RTSPMediaFactory()
factory.set_launch(LAUNCH)
factory.set_shared(True)
factory.connect("media-configure", configure)
server = GstRtspServer.RTSPServer()
server.set_address("127.0.0.1")
server.set_service(port)
if password:
    auth, token = GstRtspServer.RTSPAuth(), GstRtspServer.RTSPToken()
    token.set_string("media.factory.role", "viewer")
    auth.add_basic(GstRtspServer.RTSPAuth.make_basic("bob", password), token)
    if certificate:
        auth.set_tls_certificate(Gio.TlsCertificate.new_from_files(*certificate))
    server.set_auth(auth)
    rights = GstRtspServer.RTSPPermissions()
    rights.add_permission_for_role("viewer", "media.factory.access", True)
    rights.add_permission_for_role("viewer", "media.factory.construct", True)
    factory.set_permissions(rights)
for path in ("/live", "/ends"):
    server.get_mount_points().add_factory(path, factory)
def end_soon(client, context):  # a few frames, then the connection is closed
    if context.uri.abspath.startswith("/ends"):
        GLib.timeout_add(120, lambda: client.close())
server.connect("client-connected", lambda _, client: client.connect("play-request", end_soon))
server.attach(None)
print(server.get_bound_port(), flush=True)
GLib.MainLoop().run()
"""

_HTTP = """
import base64, ssl, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import cv2
from tests.support.pictures import numbered_image
port, password, *certificate = sys.argv[1:]
LOGIN = "Basic " + base64.b64encode(f"bob:{password}".encode()).decode()
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if password and self.headers.get("Authorization") != LOGIN:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="camera"')
            return self.end_headers()
        self.send_response(200)
        if self.path == "/page":
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            return self.wfile.write(b"<html><body>Welcome</body></html>" * 20)
        if self.path == "/snapshot":
            time.sleep(0.3)
            self.send_header("Content-Type", "image/jpeg")
            self.end_headers()
            return self.wfile.write(cv2.imencode(".jpg", numbered_image(int(time.time() * 1000) % 65536))[1].tobytes())
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        count, most = 0, {"/ends": 3, "/one": 1}.get(self.path)
        if self.path in ("/one", "/slow"):
            time.sleep(0.3)
        while most is None or count < most:
            size_wh = (640, 480) if self.path == "/grows" and count >= 5 else (320, 240)
            picture = cv2.imencode(".jpg", numbered_image(int(time.time() * 1000) % 65536, size_wh))[1].tobytes()
            if self.path == "/halves" and count % 2:
                picture = picture[: len(picture) // 2]
            head = f"--frame\\r\\nContent-Type: image/jpeg\\r\\nContent-Length: {len(picture)}\\r\\n\\r\\n"
            try:
                self.wfile.write(head.encode() + picture + b"\\r\\n")
            except OSError:
                return
            count += 1
            time.sleep(8 if self.path == "/slow" else 0.04)
    def log_message(self, *arguments):
        pass
server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
server.daemon_threads = True
if certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"""

NO_GSTREAMER = "the wheels of OpenCV have no GStreamer: `make gstreamer`"

H264 = "x264enc tune=zerolatency speed-preset=ultrafast key-int-max=25 ! rtph264pay name=pay0 pt=96"
JPEG = "jpegenc ! rtpjpegpay name=pay0 pt=26"


class StreamServer:
    """A running server; as a context manager it is gone at the end."""

    def __init__(
        self, command: list[str], scheme: str, arguments: tuple[str, ...], port: int = 0, location: str = "{}"
    ) -> None:
        self._command = command
        self._scheme = scheme
        self._arguments = arguments
        self._location = location
        self._process: subprocess.Popen[str] | None = None
        self.port = port or free_port()
        self.start()

    def __enter__(self) -> StreamServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def url(self, path: str = "/live", login: str = "") -> str:
        return self._location.format(f"{self._scheme}://{login}127.0.0.1:{self.port}{path}")

    def start(self) -> None:
        arguments = [*self._command, str(self.port), *self._arguments]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.strip():
            self.kill()
            raise AssertionError("the stream server did not start")

    def kill(self) -> None:
        if self._process:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.communicate()
            self._process = None

    def pause(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)


def rtsp_server(
    password: str = "",
    *,
    encoder: str = H264,
    size_wh: tuple[int, int] = (640, 480),
    fps: int = 25,
    port: int = 0,
    location: str = "{}",
    tls: Issued | None = None,
) -> StreamServer:
    require_rtsp_server()
    arguments = (password, encoder, str(size_wh[0]), str(size_wh[1]), str(fps), *_files_of(tls))
    return StreamServer([SYSTEM_PYTHON, "-c", _RTSP], "rtsps" if tls else "rtsp", arguments, port, location)


def http_server(password: str = "", *, location: str = "{}", tls: Issued | None = None) -> StreamServer:
    arguments = (password, *_files_of(tls))
    return StreamServer([sys.executable, "-c", _HTTP], "https" if tls else "http", arguments, location=location)


def _files_of(tls: Issued | None) -> tuple[str, ...]:
    return (str(tls.cert_file), str(tls.key_file)) if tls else ()


def rtsp_pipeline() -> StreamServer:
    """A server that a GStreamer pipeline reads."""
    return rtsp_server(location="gst:rtspsrc protocols=tcp latency=0 location={} ! decodebin")


def http_pipeline() -> StreamServer:
    """A server that a GStreamer pipeline reads."""
    return http_server(location="gst:souphttpsrc is-live=true location={} ! multipartdemux ! jpegdec")


def require_rtsp_server() -> None:
    """Skip the test where Debian's python3-gi and GStreamer's RTSP server are not installed; fail it in CI."""
    script = (
        "import gi; gi.require_version('GstRtspServer', '1.0'); gi.require_version('GstApp', '1.0'); "
        "from gi.repository import Gst; Gst.init(None); assert Gst.ElementFactory.find('x264enc')"
    )
    try:
        missing = subprocess.run([SYSTEM_PYTHON, "-c", script], capture_output=True, check=False).returncode != 0
    except OSError:
        missing = True
    if missing:
        reason = "no RTSP server: install python3-gi, gir1.2-gst-rtsp-server-1.0 and gstreamer1.0-plugins-ugly"
        not_installed(reason)


def true_age_ms(frame: Frame) -> int:
    """How old the picture is by the clock that the server put into it, in milliseconds."""
    return (int(time.time() * 1000) - number_in(frame.image)) % 65536
