"""Video files in real time, like a camera.

Owns the pace. A file that does not open, or holds no frame that can be decoded, is an error before anything starts.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from threading import Event

import numpy as np

from edge_sdk.camera.capture import OpenCvCapture, open_file
from edge_sdk.camera.slot import Slot
from edge_sdk.camera.stats import SourceStatus
from edge_sdk.errors import CameraError
from edge_sdk.frame import Image

_LONGEST_SKIP_NS = 500_000_000  # who decodes slower than real time still delivers twice a second
_COUNT_TOLERANCE = 0.95  # the frame count in a header is often an estimate


class VideoFile:
    """An opened video file whose first frame was decoded.

    Args:
        path: the file.

    Attributes:
        capture: stands behind the first frame.
        first: that frame.
        fps: frames a second; 25 where the file says nothing sensible.

    Raises:
        CameraError: not a video, or truncated so that nothing can be decoded.
    """

    def __init__(self, path: Path) -> None:
        capture = open_file(str(path.absolute()))
        first = _first_image(capture) if capture else None
        if capture is None or first is None:
            if capture is not None:
                capture.release()
            raise CameraError(f"{path}: no frame can be read; expected a complete video file, is it truncated?")
        self.capture: OpenCvCapture = capture
        self.first: Image = first
        self.fps = capture.fps

    def missing(self, read: int) -> int:
        """Frames that the header promises beyond the `read` ones, where clearly more than an error of estimate."""
        promised = self.capture.frame_count
        return int(promised) - read if math.isfinite(promised) and read < promised * _COUNT_TOLERANCE else 0


class VideoFeed:
    """Feeds a slot from a file in real time: frame i is due at start + i / fps, and that is when it was "captured".

    The clock starts when the first frame is asked for, so that nothing is lost while a model loads. A reader that
    falls behind leaves frames out, but never the last.

    Args:
        video: the opened file.
    """

    reopenings = 0
    status = SourceStatus.OPENED

    def __init__(self, video: VideoFile) -> None:
        self.unreadable = 0
        self._video = video
        self.fps = video.fps
        self._period_ns = 1e9 / video.fps

    def run(self, slot: Slot, stop: Event) -> None:
        """Feed the slot until the file ends or `stop` is set."""
        try:
            slot.wanted.wait()
            self._play(slot, stop)
        finally:
            self._video.capture.release()

    def _play(self, slot: Slot, stop: Event) -> None:
        start_ns, start_at = time.monotonic_ns(), time.time()
        image: Image | None = self._video.first
        index, last_ns = 0, start_ns
        while True:
            after_ns = int(index * self._period_ns)
            if image is not None:
                if stop.wait(max(0, start_ns + after_ns - time.monotonic_ns()) / 1e9):
                    return
                last_ns = time.monotonic_ns()
                slot.put(image, start_ns + after_ns, start_at + after_ns / 1e9, index)
            index += 1
            if stop.is_set() or not self._video.capture.grab():
                break
            image = self._retrieve(slot, index, start_ns + int(index * self._period_ns), last_ns)
        if not stop.is_set():
            self.unreadable += self._video.missing(index)

    def _retrieve(self, slot: Slot, index: int, due_ns: int, last_ns: int) -> Image | None:
        """Decode the grabbed frame unless it is late already; the last that the header promises never is."""
        now_ns = time.monotonic_ns()
        is_late = now_ns - due_ns > self._period_ns and now_ns - last_ns < _LONGEST_SKIP_NS
        if is_late and index + 1 != self._video.capture.frame_count:
            slot.skip()
            return None
        image = self._video.capture.retrieve_into(slot.buffer())
        self.unreadable += image is None
        return image


def _first_image(capture: OpenCvCapture) -> Image | None:
    return capture.retrieve_into(np.zeros((1, 1, 3), np.uint8)) if capture.grab() else None
