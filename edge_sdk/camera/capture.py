"""What a reader needs of a capture, and OpenCV's behind it: read into given buffers, and silent.

OpenCV and FFmpeg print to stderr on their own, at some levels with the URL and so with the password; here they are
silenced unless the user asked for their log.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

import cv2

from edge_sdk.camera.picture_size import MOST_SENT_PX, decode
from edge_sdk.frame import Image
from edge_sdk.source_options import DEVICE_TIMEOUT_VARIABLE, FASTEST_FPS, SLOWEST_FPS, device_timeout_s

_FALLBACK_FPS = 25.0  # where a header says nothing, or 1000 and 90000, which are time bases and no rates
_FFMPEG_QUIET = "-8"  # AV_LOG_QUIET
_MOST_BYTES = 3 * (MOST_SENT_PX + (1 << 20))  # BGR, and rows that are aligned
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
        on_release: called after it was released.
    """

    stamp_ns = None

    def __init__(
        self,
        capture: cv2.VideoCapture,
        buffered_since_ns: int | None = None,
        remarks: tuple[str, ...] = (),
        on_release: Callable[[], None] = lambda: None,
    ) -> None:
        self._capture, self._on_release = capture, on_release
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
        self._on_release()

    @property
    def comes_with_next(self) -> bool:
        """Whether a frame is returned only when the next one begins to arrive: of each stream but those of JPEGs."""
        return self.buffered_since_ns is not None

    @property
    def fps(self) -> float:
        """Frames a second; 25 where the source says nothing sensible."""
        return plausible_fps(self._capture.get(cv2.CAP_PROP_FPS))

    @property
    def excess(self) -> str:
        """What is said of pictures that are too large to be decoded; empty where they are not."""
        width, height = (int(self._capture.get(side)) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
        if width * height <= MOST_SENT_PX:
            return ""
        return f"its pictures are {width}x{height}, expected {MOST_SENT_PX / 1e6:.1f} million pixels at most"

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
        except cv2.error:
            return None
        return decode(data.reshape(-1).data, MOST_SENT_PX)


def plausible_fps(fps: float) -> float:
    """The frames a second that a header states, or 25 where that is missing (0, NaN) or absurd."""
    return fps if math.isfinite(fps) and SLOWEST_FPS <= fps <= FASTEST_FPS else _FALLBACK_FPS


@functools.cache
def _limit_ffmpeg() -> None:
    """Have OpenCV's FFmpeg take no more memory at once than one picture of the largest size needs.

    OpenCV hands FFmpeg's own `max_pixels` on to no decoder, so that half a megabyte of H.264 took 5 GB. Where OpenCV
    loads FFmpeg as a plugin, or holds a copy of it that shows no symbols, nothing is limited.

    Raises:
        OSError: no file can be opened at present.
    """
    here = Path(cv2.__file__)
    for file in [here] if here.suffix == ".so" else sorted(here.parent.glob("*.so")):
        with contextlib.suppress(AttributeError):
            limit = ctypes.CDLL(str(file)).av_max_alloc  # loaded already: this finds it, and what it depends on
            limit.argtypes, limit.restype = [ctypes.c_size_t], None
            limit(_MOST_BYTES)


def set_up_opencv() -> None:
    """Keep OpenCV and FFmpeg off stderr, and OpenCV's lock off FFmpeg; the user's own variables stay in force.

    That lock is held for a whole opening: one camera that does not answer held up every other opening in the process,
    also of a film that is written. FFmpeg has needed none since its version 4 (docs/adr/0039).
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
