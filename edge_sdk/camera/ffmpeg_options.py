"""What FFmpeg is told when OpenCV opens something.

Owns `OPENCV_FFMPEG_CAPTURE_OPTIONS`. OpenCV has no other way to say how RTSP travels or which formats a file may have,
and reads it at every opening: so it is set while something opens, and is afterwards as it was.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

_VARIABLE = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
_AS_WITHOUT = "rtsp_flags;prefer_tcp"  # what OpenCV does where the variable is missing

# No frames are counted to find out the rate, which took 0.8 s of each opening (docs/cameras.md).
_QUICK = "fpsprobesize;0"
STREAM_OPTIONS = {
    "tcp": f"rtsp_flags;prefer_tcp|{_QUICK}",
    "udp": f"rtsp_transport;udp|{_QUICK}",
}

# Containers that hold pictures and nothing else. Left out are those that name other files or addresses (hls, dash,
# concat, sdp, webvtt, imf …) and those that make pictures from anything (tty, rawvideo, image2 …).
CONTAINERS = (
    "3gp,asf,avi,dv,flv,gif,h264,hevc,ivf,m4v,matroska,mjpeg,mov,mp4,mpeg,mpegts,mpegvideo,mxf,nut,ogg,webm,"
    "yuv4mpegpipe"
)
FILE_OPTIONS = f"protocol_whitelist;file|format_whitelist;{CONTAINERS}"


class _Gate:
    """Lets those who want the same value open side by side, and others one after the other, in the order they came."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._queue: deque[object] = deque()
        self._value = ""
        self._inside = 0
        self._before = ""

    def enter(self, value: str) -> None:
        me = object()
        with self._changed:
            self._queue.append(me)
            self._changed.wait_for(lambda: self._queue[0] is me and (self._inside == 0 or self._value == value))
            self._queue.popleft()
            if self._inside == 0:
                # Never removed: a variable that appears or goes moves the environment below other threads that read it.
                self._before = os.environ.setdefault(_VARIABLE, _AS_WITHOUT)
                self._value = os.environ[_VARIABLE] = value
            self._inside += 1
            self._changed.notify_all()

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            if self._inside == 0:
                os.environ[_VARIABLE] = self._before
            self._changed.notify_all()


_gate = _Gate()
_users = os.environ.get(_VARIABLE)  # before anything here set it


@contextmanager
def stream_options(transport: str) -> Iterator[None]:
    """Open a stream within: over TCP or UDP, unless the user's own value of the variable says otherwise."""
    ours = STREAM_OPTIONS[transport]
    with _set(f"{ours}|{_users}" if _users else ours):
        yield


@contextmanager
def file_options() -> Iterator[None]:
    """Open a file within: as one of `CONTAINERS`, and nothing else can be opened by what stands in it."""
    with _set(f"{_users}|{FILE_OPTIONS}" if _users else FILE_OPTIONS):
        yield


@contextmanager
def _set(value: str) -> Iterator[None]:
    _gate.enter(value)
    try:
        yield
    finally:
        _gate.leave()
