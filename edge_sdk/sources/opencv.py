"""Open streams, V4L2 devices, files and GStreamer pipelines with OpenCV. Every `cv2.VideoCapture` is opened here.

OpenCV and FFmpeg print to standard error, at some levels with the URL and so with the password; `set_up_opencv`
silences them unless the user asked for their log. OpenCV takes the transport of RTSP and the allowed formats from one
environment variable, which it reads at the beginning of every opening; `capture_options` sets it for that long. JPEGs
and image files have OpenCV's own limit, OPENCV_IO_MAX_IMAGE_PIXELS, which `edge_sdk` sets unless a program imports cv2
first.

Network cameras are reached through `sources.relay`. `sources.live` and `sources.files` decide when to read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import cast

import numpy as np

from edge_sdk.core.errors import CameraError, MissingDependencyError
from edge_sdk.core.frame import Image
from edge_sdk.core.opencv import cv2
from edge_sdk.sources.location import (
    AS_IT_COMES,
    DEVICE_TIMEOUT_VARIABLE,
    FASTEST_FPS,
    SLOWEST_FPS,
    SourceOptions,
    UntrustedError,
    add_password,
    address_of,
    device_path,
    device_timeout_s,
    is_utf8,
    names_user,
    redact_address,
    redact_pipeline,
    through,
)
from edge_sdk.sources.relay import Relay, reason_of, stream_trouble

MAX_SENT_PX = 1 << 25
"""Most pixels of a video's pictures, a little more than 7680x4320; five are held at once."""
MAX_READ_PX = 1 << 26
"""Most pixels of a JPEG or image file: photos of telephones and camera modules have up to 64 million."""


def decode(data: bytes | memoryview) -> Image | None:
    """Decode a JPEG, PNG, BMP, WebP or PNM into uint8 (H, W, 3), BGR; None where it cannot be read or is too large."""
    try:
        return cast("Image | None", cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR))
    except cv2.error:
        return None


_FALLBACK_FPS = 25.0  # where a header says nothing, or 1000 and 90000, which are time bases and no rates
_FFMPEG_QUIET = "-8"  # AV_LOG_QUIET
_MAX_BYTES = 3 * (MAX_SENT_PX + (1 << 20))  # BGR, and rows that are aligned
_OPENCV_SILENT = 0  # LOG_LEVEL_SILENT


class Capture:
    """An opened camera, stream or file: grab a frame, then decode it.

    Attributes:
        fps: frames per second; 25 if the source reports nothing plausible.
        buffered_since_ns: monotonic nanoseconds since which frames were buffered before the first grab; None: none are.
        comes_with_next: whether a frame is returned only when the next one begins to arrive.
        stamp_ns: monotonic nanoseconds at which the sensor took the grabbed frame; None: unknown.
        remarks: one line for each option that the source did not grant.
    """

    fps: float
    buffered_since_ns: int | None = None
    comes_with_next = False
    stamp_ns: int | None = None
    remarks: tuple[str, ...] = ()

    def grab(self) -> bool:
        """Wait for the next frame; return False if none comes within the read time-out."""
        raise NotImplementedError

    def retrieve_into(self, buffer: Image) -> Image | None:
        """Decode the grabbed frame into `buffer`, or into a new array where the size differs; None: unreadable."""
        raise NotImplementedError

    def release(self) -> None:
        """Release all resources."""


class OpenCvCapture(Capture):
    """A `cv2.VideoCapture` as a `Capture`; `buffered_since_ns` is for a stream, whose frames come with the next one."""

    def __init__(
        self,
        capture: cv2.VideoCapture,
        buffered_since_ns: int | None = None,
        remarks: tuple[str, ...] = (),
        on_release: Callable[[], None] = lambda: None,
    ) -> None:
        self._capture, self._on_release = capture, on_release
        self.fps = plausible_fps(capture.get(cv2.CAP_PROP_FPS))
        self.buffered_since_ns, self.remarks = buffered_since_ns, remarks
        self.comes_with_next = buffered_since_ns is not None

    def grab(self) -> bool:
        """Grab a frame; see `Capture`."""
        try:
            return self._capture.grab()
        except cv2.error:
            return False

    def retrieve_into(self, buffer: Image) -> Image | None:
        """Decode the grabbed frame; see `Capture`."""
        try:
            readable, image = cast("tuple[bool, Image | None]", self._capture.retrieve(buffer))
        except cv2.error:
            return None
        if not readable or image is None or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
            return None
        return image

    def release(self) -> None:
        """Release the capture."""
        self._capture.release()
        self._on_release()

    @property
    def excess(self) -> str:
        """Reason why pictures are too large to be decoded; empty if they are not."""
        width, height = (int(self._capture.get(side)) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
        if width * height <= MAX_SENT_PX:
            return ""
        return f"its pictures are {width}x{height}, expected {MAX_SENT_PX / 1e6:.1f} million pixels at most"

    @property
    def frame_count(self) -> float:
        """Number of frames that the file promises; 0 or less if it does not say."""
        return self._capture.get(cv2.CAP_PROP_FRAME_COUNT)

    @property
    def position_ms(self) -> float:
        """Time of the grabbed frame in milliseconds from the beginning of the file; 0 if the file does not say."""
        return self._capture.get(cv2.CAP_PROP_POS_MSEC)


class JpegCapture(OpenCvCapture):
    """A stream of JPEGs, each of which is decoded on its own and so has its true size (docs/adr/0021).

    FFmpeg only fetches them, because OpenCV scales what FFmpeg decodes to the size of the first picture.
    """

    def __init__(
        self, capture: cv2.VideoCapture, buffered_since_ns: int | None, *, on_release: Callable[[], None]
    ) -> None:
        super().__init__(capture, buffered_since_ns, on_release=on_release)
        self.comes_with_next = False  # a JPEG marks its own end

    def retrieve_into(self, buffer: Image) -> Image | None:
        """Decode the grabbed frame into a new array, because OpenCV decodes into no other; None: unreadable."""
        try:
            _, data = cast("tuple[bool, Image | None]", self._capture.retrieve())
            if data is None or data.size == 0:  # of an empty part OpenCV returns (True, None)
                return None
        except cv2.error:
            return None
        return decode(data.reshape(-1).data)


def plausible_fps(fps: float) -> float:
    """Return the frames per second that a header states, or 25 if that is missing (0, NaN) or implausible."""
    return fps if math.isfinite(fps) and SLOWEST_FPS <= fps <= FASTEST_FPS else _FALLBACK_FPS


@functools.cache
def _limit_ffmpeg() -> None:
    """Limit each allocation of OpenCV's FFmpeg to one picture of the largest size: half a megabyte of H.264 took 5 GB.

    If OpenCV loads FFmpeg as a plugin, or contains a copy of it without symbols, nothing is limited.
    """
    here = Path(cv2.__file__)
    for file in [here] if here.suffix == ".so" else sorted(here.parent.glob("*.so")):
        with contextlib.suppress(AttributeError):
            limit = ctypes.CDLL(str(file)).av_max_alloc  # loaded already: this finds it, and what it depends on
            limit.argtypes, limit.restype = [ctypes.c_size_t], None
            limit(_MAX_BYTES)


def set_up_opencv() -> None:
    """Silence OpenCV and FFmpeg, and switch off OpenCV's lock around FFmpeg; the user's own variables stay in force.

    The lock is held for a whole opening, so that one camera that does not answer delays every other opening in the
    process. FFmpeg has needed no lock since its version 4 (docs/adr/0021).
    """
    with contextlib.suppress(OSError):  # the next opening tries again
        _limit_ffmpeg()
    os.environ.setdefault("OPENCV_FFMPEG_IS_THREAD_SAFE", "1")
    # Read by OpenCV when it opens its first capture.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", _FFMPEG_QUIET)
    os.environ.setdefault(DEVICE_TIMEOUT_VARIABLE, str(device_timeout_s()))
    if "OPENCV_LOG_LEVEL" not in os.environ:
        # OpenCV 5 has it in utils.logging, 4 in cv2 itself.
        set_level = getattr(cv2, "setLogLevel", None) or cv2.utils.logging.setLogLevel
        set_level(_OPENCV_SILENT)


_VARIABLE = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
_AS_WITHOUT = "rtsp_flags;prefer_tcp"  # what OpenCV does where the variable is missing

# No frames are counted to find out the rate, which took 0.8 s of each opening (docs/cameras.md).
_QUICK = "fpsprobesize;0"

# Containers that hold pictures and nothing else. Left out are those that name other files or addresses (hls, dash,
# concat, sdp, webvtt, imf …) and those that make pictures from anything (tty, rawvideo, image2 …).
CONTAINERS = (
    "3gp,asf,avi,dv,flv,gif,h264,hevc,ivf,m4v,matroska,mjpeg,mov,mp4,mpeg,mpegts,mpegvideo,mxf,nut,ogg,webm,"
    "yuv4mpegpipe"
)
_SENT = f"rtsp,mpjpeg,jpeg_pipe,png_pipe,webp_pipe,bmp_pipe,live_flv,{CONTAINERS}"  # what a stream may be, too
# All connections go through a relay of this process, so that a proxy of the environment's is of no use. Without rtsp
# among the protocols FFmpeg follows no redirect of RTSP, not even one to the relay.
_STREAMS = f"{_QUICK}|http_proxy;none|protocol_whitelist;tcp,http,udp,rtp,rtsp|format_whitelist;{_SENT}"
_OPTIONS = {
    "tcp": f"rtsp_flags;prefer_tcp|{_STREAMS}",
    "tls": f"rtsp_transport;tcp|{_STREAMS}",  # over UDP the pictures would not be encrypted
    "udp": f"rtsp_transport;udp|{_STREAMS}",
    "file": f"protocol_whitelist;file|format_whitelist;{CONTAINERS}",  # what a file names opens nothing else
}

_turn = Lock()  # held by the opening whose options the variable has
_users = os.environ.get(_VARIABLE)  # the user's own value


@contextmanager
def capture_options(kind: str) -> Iterator[Callable[[], None]]:
    """Open a stream (`tcp`, `tls`, `udp`) or a `file` in this context, with FFmpeg's options for it.

    The user's own value of the variable changes how streams are read, but not what a file may be.

    Yields:
        A function that lets the next opening begin; call it once FFmpeg connects, because OpenCV reads the variable
        before that.
    """
    parts = (_users, _OPTIONS[kind]) if kind == "file" else (_OPTIONS[kind], _users)
    _turn.acquire()
    # The variable is never removed: one that appears or goes moves the environment below other threads that read it.
    held = [os.environ.setdefault(_VARIABLE, _AS_WITHOUT)]
    os.environ[_VARIABLE] = "|".join(filter(None, parts))

    def has_read() -> None:
        with contextlib.suppress(IndexError):  # called before, perhaps by another thread
            os.environ[_VARIABLE] = held.pop()
            _turn.release()

    try:
        yield has_read
    finally:
        has_read()


_QUERYCAP, _CAPABILITY_BYTES = 0x80685600, 104  # VIDIOC_QUERYCAP of linux/videodev2.h, and its struct
_MJPG = cv2.VideoWriter.fourcc(*"MJPG")
# One is written while the other is looked at. With a single one the driver has none while a picture is decoded, and
# loses every other frame.
_DEVICE_BUFFERS = 2
_FPS_TOLERANCE = 0.05  # 29.97 for 30 is as asked


def open_stream(url: str, options: SourceOptions = AS_IT_COMES) -> OpenCvCapture:
    """Open an RTSP or HTTP URL with its login; where it does not open, the CameraError has only the reason."""
    relay = Relay(address_of(url), options)
    began_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.callback(relay.close)
        with capture_options("tls" if relay.address.is_encrypted else options.transport) as has_read:
            relay.on_connection = has_read
            since_ns = time.monotonic_ns()
            inner_url = through(url, relay.scheme, relay.authority)
            capture = _open(inner_url, cv2.CAP_FFMPEG, _timeouts(options) + _one_thread())
        if capture is None:
            took_s = time.monotonic() - began_s
            raise stream_trouble(relay, options, names_user=names_user(url), took_s=took_s)
        is_jpeg = int(capture.get(cv2.CAP_PROP_FOURCC)) == _MJPG and capture.set(cv2.CAP_PROP_FORMAT, -1)
        kind = JpegCapture if is_jpeg else OpenCvCapture
        opened = kind(capture, since_ns, on_release=stack.pop_all().close)
    if excess := opened.excess:
        opened.release()
        raise UntrustedError(excess)
    return opened


def stream_opener(location: str, password: str | None, options: SourceOptions) -> Callable[[], OpenCvCapture]:
    """Return a function that opens an RTSP or HTTP URL with the password of its user."""
    _require_ffmpeg(location)
    return functools.partial(open_stream, add_password(location, password), options)


def device_opener(location: str, _password: str | None, options: SourceOptions) -> Callable[[], OpenCvCapture]:
    """Return a function that opens a V4L2 device by its index or path."""
    return functools.partial(open_device, device_path(location), options)


def open_device(path: str, options: SourceOptions = AS_IT_COMES) -> OpenCvCapture:
    """Open a V4L2 device and ask it for size, rate and format; the CameraError of a failure has only the reason."""
    if not Path(path).exists():
        raise CameraError("no such device")
    if not os.access(path, os.R_OK | os.W_OK):
        raise CameraError("permission denied; add this user to the group video")
    capture = _open(path, cv2.CAP_V4L2, [])
    if capture is None:
        raise CameraError(_why_not_opened(path))
    return OpenCvCapture(capture, remarks=_configure(capture, options))


def _why_not_opened(path: str) -> str:
    """Return the reason why a V4L2 device that exists did not open."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as cause:
        return "in use by another program" if cause.errno == errno.EBUSY else reason_of(cause, "it does not open")
    try:
        fcntl.ioctl(descriptor, _QUERYCAP, bytes(_CAPABILITY_BYTES))
    except OSError:
        return "not a camera"
    finally:
        os.close(descriptor)
    return "it gives no pictures; is it in use by another program?"


def open_file(path: str) -> OpenCvCapture | None:
    """Open a video file by its absolute path; return None if it does not open or is no video."""
    _require_ffmpeg(path)
    with capture_options("file"):
        capture = _open(path, cv2.CAP_FFMPEG, _one_thread())
    return OpenCvCapture(capture) if capture else None


def gstreamer_opener(location: str, _password: str | None, options: SourceOptions) -> Callable[[], OpenCvCapture]:
    """Return a function that opens a GStreamer pipeline, with an appsink that keeps the newest picture."""
    if not has_gstreamer():
        raise MissingDependencyError(
            f"{redact_pipeline(location)}: this OpenCV was built without GStreamer, as the wheels of the package "
            "index are; give an rtsp:// URL, a /dev path or picamera2, or build OpenCV with -D WITH_GSTREAMER=ON"
        )
    pipeline = location.removeprefix("gst:")
    if "appsink" not in pipeline:
        pipeline = f"{pipeline} ! videoconvert ! video/x-raw,format=BGR ! appsink drop=true max-buffers=1 sync=false"

    def open_pipeline() -> OpenCvCapture:
        capture = _open(pipeline, cv2.CAP_GSTREAMER, _timeouts(options))
        if capture is None:
            raise CameraError("the pipeline does not start")
        return OpenCvCapture(capture)

    return open_pipeline


def has_gstreamer() -> bool:
    """Tell whether this OpenCV was built with GStreamer; `getBackends()` lists it even if it was not."""
    return re.search(r"GStreamer:\s+YES", cv2.getBuildInformation()) is not None


def _require_ffmpeg(location: str) -> None:
    if re.search(r"FFMPEG:\s+YES", cv2.getBuildInformation()) is None:
        raise MissingDependencyError(
            f"{redact_address(location)}: this OpenCV was built without FFmpeg, as `edge-sdk runtime minimal` makes "
            "it; give a /dev path, picamera2 or pictures, or install the stock opencv-python-headless"
        )


def _timeouts(options: SourceOptions) -> list[int]:
    return [
        cv2.CAP_PROP_OPEN_TIMEOUT_MSEC,
        round(options.open_timeout_s * 1000),
        cv2.CAP_PROP_READ_TIMEOUT_MSEC,
        round(options.read_timeout_s * 1000),
    ]


def _one_thread() -> list[int]:
    """Return parameters that leave the other cores to the model, unless the user sets another number.

    Each decoder thread of FFmpeg holds back one frame: with two threads every picture of a stream was 40 ms older. For
    a file they take the model's core: with one thread a classifier on two cores ran a twelfth more frames per second.
    """
    return [] if "OPENCV_FFMPEG_THREADS" in os.environ else [cv2.CAP_PROP_N_THREADS, 1]


def _configure(capture: cv2.VideoCapture, options: SourceOptions) -> tuple[str, ...]:
    """Set the options of a camera, and return a remark for each that it did not grant."""
    # The format first: which sizes and rates there are depends on it.
    if options.pixel_format is not None:
        capture.set(cv2.CAP_PROP_FOURCC, cv2.VideoWriter.fourcc(*options.pixel_format))
    if options.size_wh is not None:
        capture.set(cv2.CAP_PROP_FRAME_WIDTH, options.size_wh[0])
        capture.set(cv2.CAP_PROP_FRAME_HEIGHT, options.size_wh[1])
    if options.fps is not None:
        capture.set(cv2.CAP_PROP_FPS, options.fps)
    capture.set(cv2.CAP_PROP_BUFFERSIZE, _DEVICE_BUFFERS)
    return tuple(_shortfalls(capture, options))


def _shortfalls(capture: cv2.VideoCapture, options: SourceOptions) -> list[str]:
    found = []
    if options.pixel_format is not None:
        given = int(capture.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little", signed=True).decode("latin-1")
        if given != options.pixel_format:
            found.append(f"asked for {options.pixel_format}, the camera gives {given.strip() or 'another format'}")
    if options.size_wh is not None:
        size_wh = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        if size_wh != options.size_wh:
            found.append(size_remark(options.size_wh, size_wh))
    if options.fps is not None:
        fps = capture.get(cv2.CAP_PROP_FPS)
        if abs(fps - options.fps) > _FPS_TOLERANCE * options.fps:
            found.append(f"asked for {options.fps:g} frames a second, the camera gives {fps:g}")
    return found


def size_remark(asked_wh: tuple[int, int], given_wh: tuple[int, int]) -> str:
    """Return the remark that a camera gives another size than was asked for."""
    return "asked for {}x{}, the camera gives {}x{}".format(*asked_wh, *given_wh)


def _open(location: str, backend: int, parameters: list[int]) -> cv2.VideoCapture | None:
    set_up_opencv()
    capture = cv2.VideoCapture()
    try:
        opened = is_utf8(location) and capture.open(location, backend, parameters)
    except cv2.error:
        opened = False
    if opened:
        return capture
    capture.release()
    return None


_CODES = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_COUNTERCLOCKWISE}


class Rotation:
    """Rotates what a capture decodes, by 0, 90, 180 or 270 degrees clockwise."""

    def __init__(self, degrees: int) -> None:
        self._code = _CODES.get(degrees)
        self._upright: Image = np.zeros((1, 1, 3), np.uint8)

    def retrieve_into(self, capture: Capture, buffer: Image) -> Image | None:
        """Decode the grabbed frame, rotated, into `buffer` or a new array if the size differs; None: unreadable."""
        if self._code is None:
            return capture.retrieve_into(buffer)
        image = capture.retrieve_into(self._upright)
        if image is None:
            return None
        self._upright = image
        return cast("Image", cv2.rotate(image, self._code, buffer))


def turned(image: Image, degrees: int) -> Image:
    """Return the picture itself, or a new one rotated clockwise by 90, 180 or 270 degrees."""
    return cast("Image", cv2.rotate(image, _CODES[degrees])) if degrees else image
