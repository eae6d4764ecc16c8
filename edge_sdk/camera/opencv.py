"""OpenCV's ways in: streams, V4L2 devices, files and GStreamer pipelines. Owns every `cv2.VideoCapture`."""

from __future__ import annotations

import contextlib
import os
import re
import time

import cv2

from edge_sdk.camera.capture import JpegCapture, OpenCvCapture, set_up_opencv
from edge_sdk.camera.ffmpeg_options import file_options, stream_options
from edge_sdk.camera.relay import Relay
from edge_sdk.camera.trouble import UntrustedError, stream_trouble
from edge_sdk.location import address_of, is_utf8, names_user, through
from edge_sdk.source_options import AS_IT_COMES, SourceOptions

_MJPG = cv2.VideoWriter.fourcc(*"MJPG")
# One is written while the other is looked at. With a single one the driver has none while a picture is decoded, and
# loses every other frame.
_DEVICE_BUFFERS = 2
_FPS_TOLERANCE = 0.05  # 29.97 for 30 is as asked


def open_stream(url: str, options: SourceOptions = AS_IT_COMES) -> OpenCvCapture:
    """Open an RTSP or HTTP URL, with its login.

    Raises:
        CameraError: it does not open within the time-out; the message says why, and no more.
    """
    relay = Relay(address_of(url), options)
    began_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.callback(relay.close)
        with stream_options("tls" if relay.address.is_encrypted else options.transport):
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


def open_device(path: str, options: SourceOptions = AS_IT_COMES) -> OpenCvCapture | None:
    """Open a V4L2 device by its path and ask it for size, rate and format; None when it does not open."""
    capture = _open(path, cv2.CAP_V4L2, [])
    return OpenCvCapture(capture, remarks=_settle(capture, options)) if capture else None


def open_file(path: str) -> OpenCvCapture | None:
    """Open a video file by its absolute path; None when it does not open, or is no container of video."""
    with file_options():
        capture = _open(path, cv2.CAP_FFMPEG, _one_thread())
    return OpenCvCapture(capture) if capture else None


def open_gstreamer(pipeline: str, options: SourceOptions = AS_IT_COMES) -> OpenCvCapture | None:
    """Open a GStreamer pipeline, which gets an appsink that keeps the newest picture; None when it does not open."""
    if "appsink" not in pipeline:
        pipeline = f"{pipeline} ! videoconvert ! video/x-raw,format=BGR ! appsink drop=true max-buffers=1 sync=false"
    capture = _open(pipeline, cv2.CAP_GSTREAMER, _timeouts(options))
    return OpenCvCapture(capture) if capture else None


def has_gstreamer() -> bool:
    """Whether this OpenCV was built with GStreamer: `getBackends()` lists it all the same where it was not."""
    return re.search(r"GStreamer:\s+YES", cv2.getBuildInformation()) is not None


def _timeouts(options: SourceOptions) -> list[int]:
    return [
        cv2.CAP_PROP_OPEN_TIMEOUT_MSEC,
        round(options.open_timeout_s * 1000),
        cv2.CAP_PROP_READ_TIMEOUT_MSEC,
        round(options.read_timeout_s * 1000),
    ]


def _one_thread() -> list[int]:
    """Parameters that leave the other cores to the model, unless the user says another number.

    FFmpeg's decoder threads hold back one frame each: with two every picture of a stream was 40 ms older than with one.
    Of a file they take the model's core: with one a twelfth more frames a second ran through a classifier on two cores.
    """
    return [] if "OPENCV_FFMPEG_THREADS" in os.environ else [cv2.CAP_PROP_N_THREADS, 1]


def _settle(capture: cv2.VideoCapture, options: SourceOptions) -> tuple[str, ...]:
    """Ask a camera for what is wanted, and say what it did not give."""
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
    """What is said of a camera that has another size than was asked for."""
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
