"""Cameras for tests: real stream servers, each a process of its own, and cameras that do what a script says."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as JobTimeoutError
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import cv2
import numpy as np
import pytest

from edge_sdk.core.frame import Frame, Image
from edge_sdk.sources.location import device_timeout_s
from tests.support.absent import not_installed
from tests.support.broker import free_port
from tests.support.certificates import Issued
from tests.support.pictures import number_in

# Stream servers: RTSP by gst-rtsp-server, MJPEG over HTTP by http.server.
#
# Every picture carries the wall clock in milliseconds (modulo 65536) as bars, so that its true age can be read.

_ROOT = Path(__file__).parents[2]  # where `tests` is imported from
SYSTEM_PYTHON = "/usr/bin/python3"  # Debian's, which has GStreamer's bindings

_RTSP = """
import sys, time, gi
gi.require_version("Gst", "1.0"); gi.require_version("GstRtspServer", "1.0"); gi.require_version("GstApp", "1.0")
from gi.repository import Gio, GLib, Gst, GstApp, GstRtspServer
Gst.init(None)
port, password, encoder = sys.argv[1:4]
W, H, FPS = 640, 480, int(sys.argv[4])
certificate = sys.argv[5:7]
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
from tests.support.pictures import counted_picture, numbered_image
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
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        count, most = 0, {"/ends": 3, "/one": 1}.get(self.path)
        if self.path in ("/one", "/slow"):
            time.sleep(0.3)
        while most is None or count < most:
            size_wh = (640, 480) if self.path == "/grows" and count >= 5 else (320, 240)
            image = numbered_image(int(time.time() * 1000) % 65536, size_wh)
            if self.path == "/blinks":
                image = counted_picture(count // 10 % 2, 128)
            picture = cv2.imencode(".jpg", image)[1].tobytes()
            head = f"--frame\\r\\nContent-Type: image/jpeg\\r\\nContent-Length: {len(picture)}\\r\\n\\r\\n"
            try:
                self.wfile.write(head.encode() + picture + b"\\r\\n")
            except OSError:
                return
            count += 1
            time.sleep(45 if self.path == "/slow" else 0.04)
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
    def __init__(self, command: list[str], scheme: str, arguments: tuple[str, ...], location: str) -> None:
        self._command = command
        self._scheme = scheme
        self._arguments = arguments
        self._location = location
        self._process: subprocess.Popen[str] | None = None
        self.port = free_port()
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
    password: str = "", *, encoder: str = H264, fps: int = 25, location: str = "{}", tls: Issued | None = None
) -> StreamServer:
    require_rtsp_server()
    arguments = (password, encoder, str(fps), *_files_of(tls))
    return StreamServer([SYSTEM_PYTHON, "-c", _RTSP], "rtsps" if tls else "rtsp", arguments, location)


def http_server(password: str = "", *, location: str = "{}", tls: Issued | None = None) -> StreamServer:
    arguments = (password, *_files_of(tls))
    return StreamServer([sys.executable, "-c", _HTTP], "https" if tls else "http", arguments, location)


def _files_of(tls: Issued | None) -> tuple[str, ...]:
    return (str(tls.cert_file), str(tls.key_file)) if tls else ()


def rtsp_pipeline() -> StreamServer:
    """A server that a GStreamer pipeline reads."""
    return rtsp_server(location="gst:rtspsrc protocols=tcp latency=0 location={} ! decodebin")


def http_pipeline() -> StreamServer:
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
    return (int(time.time() * 1000) - number_in(frame.image)) % 65536


# Cameras that do what a script says, behind the names and habits of OpenCV's captures and of picamera2.
#
# A script is a list of openings, each a text: `!` it does not open; `f` a frame, `F` one of another size, `x` one that
# cannot be decoded, `s` silence until the reader's time-out, `e` an error of the driver's. After the last letter the
# camera ends, and after the last opening it gives frames for ever.

SIZE_WH, OTHER_SIZE_WH = (640, 480), (320, 240)
_PACE_S = 0.002


class Script:
    """The acts of the cameras of one test, and counts of what happened to them.

    Attributes:
        openings: how often one was opened, or tried to be.
        held: captures and requests that were not given back.
    """

    def __init__(self, *openings: str) -> None:
        self._openings = openings
        self.openings = 0
        self.held = 0

    def open(self) -> Iterator[str] | None:
        """The acts of the next opening; None where it fails."""
        acts = self._openings[self.openings] if self.openings < len(self._openings) else "f" * 10**6
        self.openings += 1
        return None if acts == "!" else iter(acts)


def picture(act: str) -> Image:
    size_wh = OTHER_SIZE_WH if act == "F" else SIZE_WH
    return np.zeros((size_wh[1], size_wh[0], 3), np.uint8)


class VideoCapture:
    """As `cv2.VideoCapture`, of 640x480 and 30 a second unless that is set; notes what is set and opened."""

    script: ClassVar[Script]
    gives: ClassVar[dict[int, float]]
    calls: ClassVar[list[tuple[int, float]]]
    opened: ClassVar[list[tuple[str, int]]]

    def __init__(self) -> None:
        self._acts: Iterator[str] | None = None
        self._act, self._silence_s, self._has_late_silence = "", 0.0, False
        self._values: dict[int, float] = {
            cv2.CAP_PROP_FRAME_WIDTH: SIZE_WH[0],
            cv2.CAP_PROP_FRAME_HEIGHT: SIZE_WH[1],
            cv2.CAP_PROP_FPS: 30,
            cv2.CAP_PROP_FOURCC: cv2.VideoWriter.fourcc(*"YUYV"),
        }

    def open(self, location: str, backend: int, parameters: list[int]) -> bool:
        self.opened.append((location, backend))
        given = dict(zip(parameters[::2], parameters[1::2], strict=True))
        self._silence_s = given.get(cv2.CAP_PROP_READ_TIMEOUT_MSEC, device_timeout_s() * 1000) / 1000
        self._has_late_silence = backend == cv2.CAP_GSTREAMER  # it "grabbed", and has nothing (docs/cameras.md)
        self._acts = self.script.open()
        self.script.held += self._acts is not None
        return self._acts is not None

    def grab(self) -> bool:
        if self._acts is None:
            return False
        self._act = next(self._acts, "")
        if self._act == "e":
            raise cv2.error("unforeseen")
        time.sleep(self._silence_s if self._act == "s" else _PACE_S)
        return self._has_late_silence if self._act == "s" else self._act != ""

    def retrieve(self, buffer: Image | None = None) -> tuple[bool, Image | None]:
        if self._act == "n":  # as of an empty part of a stream of JPEGs
            return True, None
        return (True, picture(self._act)) if self._act in ("f", "F") else (False, buffer)

    def set(self, name: int, value: float) -> bool:
        self.calls.append((name, value))
        self._values[name] = self.gives.get(name, value)
        return True

    def get(self, name: int) -> float:
        return self._values.get(name, 0)

    def release(self) -> None:
        self.script.held -= self._acts is not None
        self._acts = None


class Request:
    def __init__(self, camera: Picamera2, act: str) -> None:
        self._camera, self._act = camera, act
        camera.held += 1

    def get_metadata(self) -> dict[str, Any]:
        return {"SensorTimestamp": self._camera.clock_ns() - 30_000_000}

    def make_array(self, name: str) -> Any:
        assert name == "main"
        if self._act == "x":
            raise ValueError("cannot reshape array")
        width, height = OTHER_SIZE_WH if self._act == "F" else self._camera.config["main"]["size"]
        return np.zeros((height, width, 3), np.uint8)

    def release(self) -> None:
        self._camera.held -= 1


class Job:
    def __init__(self, camera: Picamera2) -> None:
        self._camera = camera

    def get_result(self, timeout: float | None = None) -> Request:
        assert timeout is not None
        act = self._camera.next_act()
        time.sleep(timeout if act == "s" else _PACE_S)
        if act == "s":
            raise JobTimeoutError
        if act in ("", "e"):
            raise RuntimeError("Camera frontend has timed out!")
        return Request(self._camera, act)


class Picamera2:
    script: ClassVar[Script]
    cameras = 2
    given: tuple[int, int] | None = None
    clock: Callable[[], int] = staticmethod(time.monotonic_ns)
    opened: ClassVar[list[Picamera2]]

    def __init__(self, camera_num: int = 0) -> None:
        acts = self.script.open()
        if acts is None:
            raise RuntimeError("Camera __init__ sequence did not complete.")
        self._acts = acts
        self.number, self.held = camera_num, 0
        self.calls: list[str] = []
        self.config: dict[str, Any] = {}
        self.script.held += 1
        self.opened.append(self)

    @staticmethod
    def global_camera_info() -> list[dict[str, Any]]:
        return [{"Num": number, "Model": "imx708"} for number in range(Picamera2.cameras)]

    def next_act(self) -> str:
        return next(self._acts, "")

    def clock_ns(self) -> int:
        return type(self).clock()

    def create_video_configuration(
        self, main: dict[str, Any], controls: dict[str, Any], buffer_count: int
    ) -> dict[str, Any]:
        return {"main": {"size": SIZE_WH, **main}, "controls": controls, "buffer_count": buffer_count}

    def configure(self, config: dict[str, Any]) -> None:
        self.config = config
        if self.given:
            self.config["main"]["size"] = self.given

    def camera_configuration(self) -> dict[str, Any]:
        return self.config

    def start(self) -> None:
        self.calls.append("start")

    def capture_request(self, wait: bool | float | None = None) -> Job:
        assert wait is False
        return Job(self)

    def cancel_all_and_flush(self) -> None:
        self.calls.append("cancel")

    def stop(self) -> None:
        self.calls.append("stop")

    def close(self) -> None:
        self.calls.append("close")
        self.script.held -= 1


def put_in_place(monkeypatch: pytest.MonkeyPatch, *openings: str) -> Script:
    """Have OpenCV, with GStreamer, and picamera2 give these cameras; see the module for what `openings` say."""
    script = Script(*openings)
    fresh: dict[str, object] = {"script": script, "gives": {}, "calls": [], "opened": []}
    for name, value in fresh.items():
        monkeypatch.setattr(VideoCapture, name, value, raising=False)
    monkeypatch.setattr(Picamera2, "script", script, raising=False)
    monkeypatch.setattr(Picamera2, "opened", [], raising=False)
    monkeypatch.setattr(cv2, "VideoCapture", VideoCapture)
    monkeypatch.setattr(cv2, "getBuildInformation", lambda: "    GStreamer:                   YES (1.26.0)\n")
    module = ModuleType("picamera2")
    module.Picamera2 = Picamera2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "picamera2", module)
    return script
