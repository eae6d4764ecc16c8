"""What FFmpeg is told when OpenCV opens something.

Owns `OPENCV_FFMPEG_CAPTURE_OPTIONS`. OpenCV has no other way to say how RTSP travels or which formats a file may have,
and reads it at the beginning of every opening: so it is set until that was done, and is afterwards as it was.
"""

from __future__ import annotations

import os
import platform
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, get_native_id

_VARIABLE = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
_AS_WITHOUT = "rtsp_flags;prefer_tcp"  # what OpenCV does where the variable is missing
_LOOK_S = 0.005
_POLL = {"x86_64": ("7", "271"), "aarch64": ("73",)}  # poll and ppoll in the kernel's asm/unistd.h

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
STREAM_OPTIONS = {
    "tcp": f"rtsp_flags;prefer_tcp|{_STREAMS}",
    "tls": f"rtsp_transport;tcp|{_STREAMS}",  # over UDP the pictures would not be encrypted
    "udp": f"rtsp_transport;udp|{_STREAMS}",
}
FILE_OPTIONS = f"protocol_whitelist;file|format_whitelist;{CONTAINERS}"


class _Gate:
    """Keeps the variable at a value until all who open with it have read it; then lets others in, as they came."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._queue: deque[object] = deque()
        self._value = ""
        self._reading: set[int] = set()  # threads, by their native ids, that may not have read it yet
        self._before = ""

    def enter(self, value: str) -> None:
        me = object()
        with self._changed:
            self._queue.append(me)
            try:
                while self._queue[0] is not me or not self._is_free(value):
                    self._changed.wait(_LOOK_S if self._queue[0] is me else None)
            finally:
                self._queue.remove(me)
                self._changed.notify_all()
            if not self._reading:
                # Never removed: a variable that appears or goes moves the environment below other threads that read it.
                self._before = os.environ.setdefault(_VARIABLE, _AS_WITHOUT)
                self._value = os.environ[_VARIABLE] = value
            self._reading.add(get_native_id())

    def leave(self) -> None:
        with self._changed:
            self._has_read(get_native_id())
            self._changed.notify_all()

    def _is_free(self, value: str) -> bool:
        if value != self._value:
            for thread in [each for each in self._reading if _waits_for_network(each)]:
                self._has_read(thread)
        return not self._reading or value == self._value

    def _has_read(self, thread: int) -> None:
        if thread in self._reading:
            self._reading.remove(thread)
            if not self._reading:
                os.environ[_VARIABLE] = self._before


def _waits_for_network(thread: int) -> bool:
    """Whether a thread of this process sleeps in poll(2); False where the kernel does not say.

    OpenCV reads the variable before FFmpeg connects. What may hold it up before that are locks and the disk, which are
    other system calls, or none.
    """
    try:
        call = Path(f"/proc/self/task/{thread}/syscall").read_text("ascii").split(maxsplit=1)[0]
    except OSError:
        return False
    return call in _POLL.get(platform.machine(), ())


_gate = _Gate()
_users = os.environ.get(_VARIABLE)  # before anything here set it


@contextmanager
def stream_options(transport: str) -> Iterator[None]:
    """Open a stream within, as `STREAM_OPTIONS` say, unless the user's own value of the variable says otherwise."""
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
