"""OpenCV's captures: opened with time-outs, read into given buffers, and silent.

Owns every `cv2.VideoCapture`. OpenCV and FFmpeg print to stderr on their own, at some levels with the URL and so with
the password; here they are silenced unless the user asked for their log.
"""

from __future__ import annotations

import math
import os
import time
from typing import Protocol, cast

import cv2

from edge_sdk.frame import Image

OPEN_TIMEOUT_MS = 3000
READ_TIMEOUT_MS = 2000

_FALLBACK_FPS = 25.0
_SLOWEST_FPS, _FASTEST_FPS = 0.1, 240.0  # outside, the header is wrong: 1000 and 90000 are time bases, not rates
_FFMPEG_QUIET = "-8"  # AV_LOG_QUIET
_OPENCV_SILENT = 0  # LOG_LEVEL_SILENT


class Capture(Protocol):
    """What a reader needs of a capture."""

    @property
    def buffered_since_ns(self) -> int | None:
        """Monotonic nanoseconds since when frames were buffered before the first grab; None where none are."""
        ...

    @property
    def fps(self) -> float:
        """Frames a second; 25 where the source says nothing sensible."""
        ...

    def grab(self) -> bool:
        """Wait for the next frame; False when there is none."""
        ...

    def retrieve_into(self, buffer: Image) -> Image | None:
        """Decode the grabbed frame into `buffer`, or into a new array where the size differs; None: unreadable."""
        ...

    def release(self) -> None:
        """Give everything back."""
        ...


class OpenCvCapture:
    """A `cv2.VideoCapture` as a `Capture`."""

    def __init__(self, capture: cv2.VideoCapture, buffered_since_ns: int | None = None) -> None:
        self._capture = capture
        self.buffered_since_ns = buffered_since_ns

    def grab(self) -> bool:
        """Wait for the next frame; False when there is none within the read time-out."""
        try:
            return self._capture.grab()
        except cv2.error:
            return False

    def retrieve_into(self, buffer: Image) -> Image | None:
        """Decode the grabbed frame into `buffer`, or into a new array where the size differs; None: unreadable."""
        try:
            readable, image = self._capture.retrieve(buffer)
        except cv2.error:
            return None
        if not readable or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
            return None
        return cast("Image", image)

    def release(self) -> None:
        """Give everything back."""
        self._capture.release()

    @property
    def fps(self) -> float:
        """Frames a second; 25 where the source says nothing sensible."""
        return plausible_fps(self._capture.get(cv2.CAP_PROP_FPS))

    @property
    def frame_count(self) -> float:
        """Frames that the file promises; 0 or less where it does not say."""
        return self._capture.get(cv2.CAP_PROP_FRAME_COUNT)


def open_stream(url: str) -> OpenCvCapture | None:
    """Open an RTSP or HTTP URL (RTSP over TCP); None when it does not open within `OPEN_TIMEOUT_MS`."""
    parameters = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, OPEN_TIMEOUT_MS, cv2.CAP_PROP_READ_TIMEOUT_MSEC, READ_TIMEOUT_MS]
    since_ns = time.monotonic_ns()
    capture = _open(url, cv2.CAP_FFMPEG, parameters + _one_thread())
    return OpenCvCapture(capture, since_ns) if capture else None


def open_device(path: str) -> OpenCvCapture | None:
    """Open a V4L2 device by its path; None when it does not open."""
    capture = _open(path, cv2.CAP_V4L2, [])
    return OpenCvCapture(capture) if capture else None


def open_file(path: str) -> OpenCvCapture | None:
    """Open a video file by its absolute path; None when it does not open."""
    capture = _open(path, cv2.CAP_FFMPEG, _one_thread())
    return OpenCvCapture(capture) if capture else None


def plausible_fps(fps: float) -> float:
    """The frames a second that a header states, or 25 where that is missing (0, NaN) or absurd."""
    return fps if math.isfinite(fps) and _SLOWEST_FPS <= fps <= _FASTEST_FPS else _FALLBACK_FPS


def _one_thread() -> list[int]:
    """Parameters that leave the other cores to the model, unless the user says another number.

    FFmpeg's decoder threads hold back one frame each: with two every picture of a stream was 40 ms older than with one.
    Of a file they take the model's core: with one a twelfth more frames a second ran through a classifier on two cores.
    """
    return [] if "OPENCV_FFMPEG_THREADS" in os.environ else [cv2.CAP_PROP_N_THREADS, 1]


def _open(location: str, backend: int, parameters: list[int]) -> cv2.VideoCapture | None:
    silence()
    capture = cv2.VideoCapture()
    try:
        opened = capture.open(location, backend, parameters)
    except cv2.error:
        opened = False
    if opened:
        return capture
    capture.release()
    return None


def silence() -> None:
    """Keep OpenCV and FFmpeg off stderr; whoever sets their environment variables gets their log all the same."""
    # Read by OpenCV when it opens its first capture.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", _FFMPEG_QUIET)
    os.environ.setdefault("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", str(READ_TIMEOUT_MS // 1000))
    if "OPENCV_LOG_LEVEL" not in os.environ:
        # OpenCV 5 has it in utils.logging, 4 in cv2 itself.
        set_level = getattr(cv2, "setLogLevel", None) or cv2.utils.logging.setLogLevel
        set_level(_OPENCV_SILENT)
