"""One location in, one opened source out."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from edge_sdk.camera.capture import OPEN_TIMEOUT_MS, open_device, open_stream
from edge_sdk.camera.every_frame import EveryFrame
from edge_sdk.camera.images import ImageFiles
from edge_sdk.camera.live import LiveFeed
from edge_sdk.camera.stats import OpenedSource
from edge_sdk.camera.threaded import ThreadedSource
from edge_sdk.camera.video import VideoFeed, VideoFile
from edge_sdk.errors import CameraError
from edge_sdk.location import Kind, add_password, kind_of, redact


def open_source(
    location: str, *, camera: str = "camera", password: str | None = None, realtime: bool = True
) -> OpenedSource:
    """Open a source of frames.

    Files end; cameras and streams are reopened for ever once they have opened for the first time. Certificates of
    rtsps and https cameras are not verified. When a stream changes its size, OpenCV (4.13 or later) scales it to the
    first size until it is reopened.

    Args:
        location: a V4L2 index ("0") or /dev path, an RTSP(S) or HTTP(S) URL, a video file, an image or a folder.
        camera: the stream's name, which every frame bears.
        password: of the user that the URL names; only OpenCV gets to see it. Ignored where there is no URL.
        realtime: a video file plays at its own pace and may drop frames; False: every frame in turn.

    Raises:
        CameraError: it does not open, or holds no picture that can be read.
        ConfigError: a password for a URL without a user name.
    """
    kind = kind_of(location)
    if kind is Kind.IMAGES:
        return ImageFiles(Path(location), camera)
    if kind is Kind.VIDEO:
        video = VideoFile(Path(location))
        return ThreadedSource(VideoFeed(video), camera) if realtime else EveryFrame(video, camera)
    feed = _stream_feed(location, password) if kind is Kind.STREAM else _device_feed(location)
    return ThreadedSource(feed, camera)


def _stream_feed(location: str, password: str | None) -> LiveFeed:
    reopen = partial(open_stream, add_password(location, password))
    first = reopen()
    if first is None:
        raise CameraError(
            f"{redact(location)}: no video within {OPEN_TIMEOUT_MS / 1000:g} s; check that the camera is on, and its "
            "address, path, user and password"
        )
    return LiveFeed(first, reopen)


def _device_feed(location: str) -> LiveFeed:
    path = f"/dev/video{int(location)}" if location.isdigit() else location
    _check_device(path)
    first = open_device(path)
    if first is None:
        raise CameraError(f"{path}: not a camera, or in use by another program; see `v4l2-ctl --list-devices`")
    return LiveFeed(first, partial(open_device, path))


def _check_device(path: str) -> None:
    if not Path(path).exists():
        raise CameraError(f"{path}: no such device; is the camera connected? See `v4l2-ctl --list-devices`")
    if not os.access(path, os.R_OK | os.W_OK):
        raise CameraError(f"{path}: permission denied; add this user to the group `video`")
