"""What a reader needs of a capture, and OpenCV's behind it: read into given buffers, and silent.

OpenCV and FFmpeg print to stderr on their own, at some levels with the URL and so with the password; here they are
silenced unless the user asked for their log.
"""

from __future__ import annotations

import math
import os
from typing import Protocol, cast

import cv2

from edge_sdk.frame import Image
from edge_sdk.source_options import DEVICE_TIMEOUT_VARIABLE, FASTEST_FPS, SLOWEST_FPS, device_timeout_s

_FALLBACK_FPS = 25.0  # where a header says nothing, or 1000 and 90000, which are time bases and no rates
_FFMPEG_QUIET = "-8"  # AV_LOG_QUIET
_OPENCV_SILENT = 0  # LOG_LEVEL_SILENT


class Capture(Protocol):
    """What a reader needs of a capture."""

    @property
    def buffered_since_ns(self) -> int | None:
        """Monotonic nanoseconds since when frames were buffered before the first grab; None where none are."""
        ...

    @property
    def comes_with_next(self) -> bool:
        """Whether a frame is returned only when the next one begins to arrive."""
        ...

    @property
    def fps(self) -> float:
        """Frames a second; 25 where the source says nothing sensible."""
        ...

    @property
    def stamp_ns(self) -> int | None:
        """Monotonic nanoseconds at which the sensor took the grabbed frame; None where it does not say."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was asked of the source and not got, a line each."""
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
    """A `cv2.VideoCapture` as a `Capture`.

    Args:
        capture: opened.
        buffered_since_ns: see `Capture`.
        remarks: see `Capture`.
    """

    stamp_ns = None

    def __init__(
        self, capture: cv2.VideoCapture, buffered_since_ns: int | None = None, remarks: tuple[str, ...] = ()
    ) -> None:
        self._capture = capture
        self.buffered_since_ns = buffered_since_ns
        self.remarks = remarks

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

    def rewind(self) -> bool:
        """Grab the first frame of a file again; False where there is none to be had, True also where it is another."""
        try:
            return self._capture.set(cv2.CAP_PROP_POS_FRAMES, 0) and self._capture.grab()
        except cv2.error:
            return False

    def release(self) -> None:
        """Give everything back."""
        self._capture.release()

    @property
    def comes_with_next(self) -> bool:
        """Whether a frame is returned only when the next one begins to arrive: of each stream but those of JPEGs."""
        return self.buffered_since_ns is not None

    @property
    def fps(self) -> float:
        """Frames a second; 25 where the source says nothing sensible."""
        return plausible_fps(self._capture.get(cv2.CAP_PROP_FPS))

    @property
    def frame_count(self) -> float:
        """Frames that the file promises; 0 or less where it does not say."""
        return self._capture.get(cv2.CAP_PROP_FRAME_COUNT)

    @property
    def position_ms(self) -> float:
        """When the grabbed frame of a file is due, milliseconds from its beginning; 0 where the file does not say."""
        return self._capture.get(cv2.CAP_PROP_POS_MSEC)


class JpegCapture(OpenCvCapture):
    """A stream of JPEGs, each of which is decoded on its own and so has its true size.

    OpenCV scales what comes to the size of the first picture, says that size for ever, and nothing tells that it was
    another one. So FFmpeg only fetches, and the JPEGs are decoded here: .1 ms more for 1280x720 (docs/adr/0039).
    """

    @property
    def comes_with_next(self) -> bool:
        """See `Capture`: where a JPEG ends, it says itself."""
        return False

    def retrieve_into(self, buffer: Image) -> Image | None:
        """Decode the grabbed frame, into a new array, which is all that OpenCV can do; None: unreadable."""
        try:
            readable, data = self._capture.retrieve()
            if not readable or data.size == 0:
                return None
            return cast("Image | None", cv2.imdecode(data.reshape(-1), cv2.IMREAD_COLOR))
        except cv2.error:
            return None


def plausible_fps(fps: float) -> float:
    """The frames a second that a header states, or 25 where that is missing (0, NaN) or absurd."""
    return fps if math.isfinite(fps) and SLOWEST_FPS <= fps <= FASTEST_FPS else _FALLBACK_FPS


def set_up_opencv() -> None:
    """Keep OpenCV and FFmpeg off stderr, and OpenCV's lock off FFmpeg; the user's own variables stay in force.

    That lock is held for a whole opening: one camera that does not answer held up every other opening in the process,
    also of a film that is written. FFmpeg has needed none since its version 4 (docs/adr/0039).
    """
    os.environ.setdefault("OPENCV_FFMPEG_IS_THREAD_SAFE", "1")
    # Read by OpenCV when it opens its first capture.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", _FFMPEG_QUIET)
    os.environ.setdefault(DEVICE_TIMEOUT_VARIABLE, str(device_timeout_s()))
    if "OPENCV_LOG_LEVEL" not in os.environ:
        # OpenCV 5 has it in utils.logging, 4 in cv2 itself.
        set_level = getattr(cv2, "setLogLevel", None) or cv2.utils.logging.setLogLevel
        set_level(_OPENCV_SILENT)
