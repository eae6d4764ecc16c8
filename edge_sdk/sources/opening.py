"""The table of source kinds, and the way from a location to an opened source.

A location is what a user writes: `rtsp://…`, `0`, `pattern`, a path. To add a kind of camera, write a function that
opens it in a file of its own and name it in `SOURCE_KINDS`. Loading this module loads no OpenCV; a kind's own module is
loaded when a source of it is opened or checked.

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

from edge_sdk.core.errors import CameraError, UsageError, descriptor_shortage, printable
from edge_sdk.sources.location import (
    AS_IT_COMES,
    IMAGE_SUFFIXES,
    NOT_UTF8,
    SCHEMES,
    SourceOptions,
    UntrustedError,
    address_of,
    check_path,
    device_path,
    device_timeout_s,
    is_device,
    is_utf8,
    picamera_number,
    redact_address,
    redact_pipeline,
)

if TYPE_CHECKING:
    from edge_sdk.sources.opencv import Capture
    from edge_sdk.sources.slot import OpenedSource


class SourceKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of source: one entry of `SOURCE_KINDS`.

    Attributes:
        form: form of its locations, for people.
        words: name of the kind, for people.
        is_named: whether a location names a source of this kind; for files and folders the path decides.
        opener: `module:function` of a camera or stream. The function takes location, password and `SourceOptions`. It
            raises errors that waiting does not cure, and returns a function that opens a `Capture` or raises a
            CameraError with only the reason. Empty for files.
        redact: shows a location without what may be a secret.
        advice: the next step where it does not open.
    """

    name: str
    form: str
    words: str
    is_named: Callable[[str], bool] = lambda _location: False
    opener: str = ""
    redact: Callable[[str], str] = redact_address
    advice: str = ""


GSTREAMER = SourceKind(
    name="gstreamer",
    form="gst:PIPELINE",
    words="a GStreamer pipeline",
    is_named=lambda location: location.startswith("gst:"),
    opener="edge_sdk.sources.opencv:gstreamer_opener",
    redact=redact_pipeline,
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
    is_named=lambda location: location.partition(":")[0] == "pattern",
    opener="edge_sdk.sources.files:pattern_opener",
    redact=printable,
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

SOURCE_KINDS = (DEVICE, GSTREAMER, PICAMERA, PATTERN, STREAM, VIDEO, IMAGES)
"""All kinds, in the order in which a location is compared with them."""

FORMS = ", ".join(kind.form for kind in SOURCE_KINDS)
"""Forms of locations for people, in `--help`, the configuration's schema and errors."""


def named_kind(location: str) -> SourceKind | None:
    """Return the kind of a location that is no path; None for a path, which need not exist."""
    return next((kind for kind in SOURCE_KINDS if kind.is_named(location)), None)


def redact(location: str) -> str:
    """Show a location without what may be a secret, as its kind says."""
    return (named_kind(location) or VIDEO).redact(location)


def kind_of(location: str) -> SourceKind:
    """Return the kind of source that a location names; to open a file with such a name, write `./pattern`.

    Raises:
        CameraError: a URL is not RTSP or HTTP or names no server, a file is missing, or OpenCV cannot take the name.
    """
    kind = named_kind(location)
    if kind is STREAM and location.partition("://")[0].lower() not in SCHEMES:
        raise CameraError(f"{redact(location)}: this kind of URL is not supported, expected {FORMS}")
    if kind is None:
        check_path(location, f", expected {FORMS}")
        path = Path(location)
        kind = IMAGES if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES else VIDEO
    if kind is not IMAGES and not is_utf8(location):  # images are read from memory
        raise CameraError(f"{kind.redact(location)}: {NOT_UTF8}")
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
        camera: name of the stream, stored in every frame.
        password: password of the URL's user; only OpenCV gets it. Ignored for other locations.
        realtime: play a video file at its own pace, perhaps dropping frames; False: deliver every frame in order.
        options: options of the source.
        waits: wait for a missing camera, with the status `OPENING` and the reason in `trouble`. Faults that waiting
            does not cure still raise an error.

    Raises:
        CameraError: the source does not open, or contains no readable picture.
        UsageError: the location is no text, number or path.
        ConfigError: there is a password, but the URL has no user name.
        MissingDependencyError: picamera2, or GStreamer in OpenCV, is not there.
    """
    if not isinstance(location, str | int | Path):
        raise UsageError(f"the source is {location!r}, expected {FORMS}")
    location = str(location)  # OpenCV users write the integer 0
    kind = kind_of(location)
    if kind is IMAGES:
        from edge_sdk.sources.files import ImageFiles

        return ImageFiles(Path(location), camera, options)
    if kind is VIDEO:
        from edge_sdk.sources.files import EveryFrame, VideoFile, VideoSource

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
    """Return a function that opens a camera or stream; see `SourceKind.opener`."""
    opener: Callable[[str, str | None, SourceOptions], Callable[[], Capture]]
    opener = pkgutil.resolve_name(kind_of(location).opener)
    return opener(location, password, options)


def check_location(location: str) -> SourceKind:
    """Check the form of a location and that its kind's packages are installed; open nothing."""
    kind = kind_of(location)
    if kind.opener:
        opener_of(location, None, AS_IT_COMES)
    return kind
