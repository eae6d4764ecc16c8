"""One location in, one opened source out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from edge_sdk.core.errors import CameraError, MissingDependencyError
from edge_sdk.sources.images import ImageFiles, Pattern
from edge_sdk.sources.live import LiveFeed
from edge_sdk.sources.location import (
    AS_IT_COMES,
    PATTERN_SLOWEST_FPS,
    Kind,
    SourceOptions,
    add_password,
    device_timeout_s,
    kind_of,
    pattern_of,
    picamera_number,
    redact,
)
from edge_sdk.sources.opencv import Capture, has_gstreamer, open_device, open_gstreamer, open_stream, rotated
from edge_sdk.sources.slot import OpenedSource, ThreadedSource
from edge_sdk.sources.trouble import UntrustedError, device_trouble, opened_device_trouble, want_of_descriptors
from edge_sdk.sources.video import EveryFrame, VideoFeed, VideoFile

_PATTERN_SIZE_WH, _PATTERN_FPS = (1280, 720), 30.0
_ADVICE = {
    Kind.DEVICE: "see `v4l2-ctl --list-devices`",
    Kind.STREAM: "check that the camera is on, and its address, path, user and password",
    Kind.PICAMERA: "see `rpicam-hello --list-cameras`",
    Kind.GSTREAMER: "try it with `gst-launch-1.0`",
}


def open_source(
    location: str | int,
    *,
    camera: str = "camera",
    password: str | None = None,
    realtime: bool = True,
    options: SourceOptions = AS_IT_COMES,
    waits: bool = False,
) -> OpenedSource:
    """Open a source of frames.

    Files end; cameras and streams are reopened for ever. Certificates of rtsps and https cameras are verified, and
    redirects to other servers are refused, unless `options` say otherwise. When an H.264 or H.265 stream changes its
    size without a new session, OpenCV scales it to the first size.

    Args:
        location: a V4L2 index ("0") or /dev path, an RTSP(S) or HTTP(S) URL, `picamera2`, `gst:PIPELINE`, `pattern`, a
            video file, an image or a folder (docs/cameras.md).
        camera: the stream's name, which every frame bears.
        password: of the user that the URL names; only OpenCV gets to see it. Ignored where there is no URL.
        realtime: a video file plays at its own pace and may drop frames; False: every frame in turn.
        options: what it is asked for.
        waits: a camera that is not there is no error: it is waited for, with the status `OPENING` and the reason in
            `trouble`. What no waiting mends is an error all the same.

    Raises:
        CameraError: it does not open, or holds no picture that can be read.
        ConfigError: a password for a URL without a user name.
        MissingDependencyError: picamera2, or GStreamer in OpenCV, is not there.
    """
    location = str(location)  # whoever comes from OpenCV writes 0
    kind = kind_of(location)
    if kind is Kind.IMAGES:
        return ImageFiles(Path(location), camera, options)
    if kind is Kind.VIDEO:
        video = VideoFile(Path(location), options)
        return ThreadedSource(VideoFeed(video), camera) if realtime else EveryFrame(video, camera)
    reopen = _opener(kind, location, password, options)
    first = None if waits else _opened(kind, location, reopen)
    read_timeout_s = device_timeout_s() if kind is Kind.DEVICE else options.read_timeout_s
    return ThreadedSource(LiveFeed(first, reopen, read_timeout_s=read_timeout_s), camera)


def _opened(kind: Kind, location: str, reopen: Callable[[], Capture]) -> Capture:
    try:
        return reopen()
    except CameraError as cause:
        trouble = want_of_descriptors() or str(cause)
        shown = _device_path(location) if kind is Kind.DEVICE else redact(location)
        advice = "" if isinstance(cause, UntrustedError) else f"; {_ADVICE[kind]}"
        raise CameraError(f"{shown}: {trouble}{advice}") from cause


def _opener(kind: Kind, location: str, password: str | None, options: SourceOptions) -> Callable[[], Capture]:
    """What opens a live source, and raises a CameraError that says no more than why not.

    Raises:
        EdgeError: what no waiting mends.
    """
    open_one: Callable[[], Capture]
    if kind is Kind.STREAM:
        open_one = _stream_opener(location, password, options)
    elif kind is Kind.DEVICE:
        path = _device_path(location)
        open_one = partial(_open_device, path, options)
    elif kind is Kind.PICAMERA:
        from edge_sdk.sources.picamera2 import Picamera, load_picamera  # few boards have one

        load_picamera()
        number = picamera_number(location)
        open_one = partial(Picamera, number, options)
    elif kind is Kind.GSTREAMER:
        open_one = _gstreamer_opener(location, options)
    else:
        open_one = _pattern_opener(location, options)
    return lambda: rotated(open_one(), options.rotate)


def _pattern_opener(location: str, options: SourceOptions) -> Callable[[], Capture]:
    size_wh, fps = pattern_of(location)
    fps = fps or options.fps or _PATTERN_FPS
    if fps < PATTERN_SLOWEST_FPS:
        raise CameraError(f"{redact(location)}: fps is {fps:g}, expected {PATTERN_SLOWEST_FPS:g} or more of a pattern")
    return partial(Pattern, size_wh or options.size_wh or _PATTERN_SIZE_WH, fps)


def _stream_opener(location: str, password: str | None, options: SourceOptions) -> Callable[[], Capture]:
    url = add_password(location, password)
    return partial(open_stream, url, options)


def _gstreamer_opener(location: str, options: SourceOptions) -> Callable[[], Capture]:
    if not has_gstreamer():
        raise MissingDependencyError(
            f"{redact(location)}: this OpenCV was built without GStreamer, as the wheels of the package index are; "
            "give an rtsp:// URL, a /dev path or picamera2, or build OpenCV with -D WITH_GSTREAMER=ON"
        )

    def open_one() -> Capture:
        capture = open_gstreamer(location.removeprefix("gst:"), options)
        if capture is None:
            raise CameraError("the pipeline does not start")
        return capture

    return open_one


def _device_path(location: str) -> str:
    return f"/dev/video{int(location)}" if location.isdigit() else location


def _open_device(path: str, options: SourceOptions) -> Capture:
    trouble = device_trouble(path)
    if trouble:
        raise CameraError(trouble)
    capture = open_device(path, options)
    if capture is None:
        raise CameraError(opened_device_trouble(path))
    return capture


def check_location(location: str) -> Kind:
    """See whether what a kind of source needs is installed, and whether it is written as it must be; opens nothing.

    Returns:
        Its kind.

    Raises:
        CameraError: a pattern that is out of range, or a file that is not there.
        MissingDependencyError: picamera2, or GStreamer in OpenCV, is not there.
    """
    kind = kind_of(location)
    if kind not in (Kind.IMAGES, Kind.VIDEO):
        _opener(kind, location, None, AS_IT_COMES)
    return kind
