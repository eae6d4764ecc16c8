"""The table of source kinds, and the way from a location to an opened source.

A location is what a user writes: `rtsp://…`, `0`, `pattern`, a path. To add a kind of camera, write a function that
opens it in a file of its own and name it in `TABLE`. Loading this module loads no OpenCV; a kind's own module is loaded
when a source of it is opened or checked.

    location -- kind_of --> SourceKind -- opener --> Capture -- LiveSource: cameras and streams
                                       -- VideoFile -- VideoSource, or EveryFrame
                                       -- ImageFiles
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edge_sdk.core.errors import CameraError, descriptor_shortage
from edge_sdk.sources.location import (
    AS_IT_COMES,
    IMAGE_SUFFIXES,
    SCHEMES,
    SourceOptions,
    UntrustedError,
    address_of,
    check_path,
    check_utf8,
    device_path,
    device_timeout_s,
    is_device,
    is_pattern,
    picamera_number,
    redact,
)

if TYPE_CHECKING:
    from edge_sdk.sources.opencv import Capture
    from edge_sdk.sources.slot import OpenedSource


class SourceKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of source: one entry of `TABLE`.

    Attributes:
        form: how its locations are written, for people.
        words: what it is, for people.
        is_named: whether a location names a source of this kind; of files and folders their path decides.
        opener: `module:function` of a camera or stream. The function takes location, password and `SourceOptions`,
            raises what no waiting mends, and returns what opens a `Capture` or raises a CameraError that says no more
            than why not. Empty for files.
    """

    name: str
    form: str
    words: str
    is_named: Callable[[str], bool] = lambda _location: False
    opener: str = ""
    advice: str = ""


GSTREAMER = SourceKind(
    name="gstreamer",
    form="gst:PIPELINE",
    words="a GStreamer pipeline",
    is_named=lambda location: location.startswith("gst:"),
    opener="edge_sdk.sources.opencv:gstreamer_opener",
    advice="; try it with `gst-launch-1.0`",
)
PICAMERA = SourceKind(
    name="picamera2",
    form="picamera2",
    words="a camera module of a Raspberry Pi",
    is_named=lambda location: picamera_number(location) is not None,
    opener="edge_sdk.sources.picamera2:picamera_opener",
    advice="; see `rpicam-hello --list-cameras`",
)
PATTERN = SourceKind(
    name="pattern",
    form="pattern",
    words="a made picture, for trying things out",
    is_named=is_pattern,
    opener="edge_sdk.sources.images:pattern_opener",
)
STREAM = SourceKind(
    name="stream",
    form="an rtsp(s):// or http(s):// URL",
    words="a stream",
    is_named=lambda location: "://" in location,
    opener="edge_sdk.sources.opencv:stream_opener",
    advice="; check that the camera is on, and its address, path, user and password",
)
DEVICE = SourceKind(
    name="device",
    form="a V4L2 index or /dev path",
    words="a camera of this machine",
    is_named=is_device,
    opener="edge_sdk.sources.opencv:device_opener",
    advice="; see `v4l2-ctl --list-devices`",
)
VIDEO = SourceKind(name="video", form="a video file", words="a video file")
IMAGES = SourceKind(name="images", form="an image or a folder of images", words="images")

TABLE = (DEVICE, GSTREAMER, PICAMERA, PATTERN, STREAM, VIDEO, IMAGES)
"""In the order in which a location is compared with them."""

FORMS = ", ".join(kind.form for kind in TABLE)
"""How a source is written, for people: what `--help`, the configuration's schema and errors say."""


def named_kind(location: str) -> SourceKind | None:
    """Return the kind of a location that is no path; None: the path of a file or folder, which may not be there."""
    return next((kind for kind in TABLE if kind.is_named(location)), None)


def kind_of(location: str) -> SourceKind:
    """Return the kind of source that a location names. A file of such a name is reached by its path: `./pattern`.

    Raises:
        CameraError: a URL that is not RTSP or HTTP or names no server, no file where a file is meant, or a name that
            OpenCV cannot take.
    """
    kind = named_kind(location)
    if kind is STREAM and location.partition("://")[0].lower() not in SCHEMES:
        raise CameraError(f"{redact(location)}: this kind of URL is not supported, expected {FORMS}")
    if kind is None:
        check_path(location, f", expected {FORMS}")
        path = Path(location)
        kind = IMAGES if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES else VIDEO
    if kind is not IMAGES:  # images are read from memory
        check_utf8(location)
    if kind is STREAM:
        address_of(location)
    return kind


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
    if kind is IMAGES:
        from edge_sdk.sources.images import ImageFiles

        return ImageFiles(Path(location), camera, options)
    if kind is VIDEO:
        from edge_sdk.sources.video import EveryFrame, VideoFile, VideoSource

        video = VideoFile(Path(location), options)
        return VideoSource(video, camera) if realtime else EveryFrame(video, camera)
    from edge_sdk.sources.live import LiveSource

    open_capture = opener_of(location, password, options)
    first = None
    if not waits:
        try:
            first = open_capture()
        except CameraError as cause:
            shown = device_path(location) if kind is DEVICE else redact(location)
            advice = "" if isinstance(cause, UntrustedError) else kind.advice
            raise CameraError(f"{shown}: {descriptor_shortage() or cause}{advice}") from cause
    read_timeout_s = device_timeout_s() if kind is DEVICE else options.read_timeout_s
    return LiveSource(camera, first, open_capture, read_timeout_s=read_timeout_s, rotate=options.rotate)


def opener_of(location: str, password: str | None, options: SourceOptions) -> Callable[[], Capture]:
    """Return what opens a camera or stream, and raises a CameraError that says no more than why not.

    Raises:
        EdgeError: what no waiting mends.
    """
    opener: Callable[[str, str | None, SourceOptions], Callable[[], Capture]]
    opener = pkgutil.resolve_name(kind_of(location).opener)
    return opener(location, password, options)


def check_location(location: str) -> SourceKind:
    """Check that what a kind of source needs is installed, and that it is written as it must be; opens nothing.

    Raises:
        CameraError: a pattern that is out of range, or a file that is not there.
        MissingDependencyError: picamera2, or GStreamer in OpenCV, is not there.
    """
    kind = kind_of(location)
    if kind.opener:
        opener_of(location, None, AS_IT_COMES)
    return kind
