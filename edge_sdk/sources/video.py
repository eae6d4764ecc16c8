"""Read video files: in real time like a camera (`VideoSource`), or every frame in order (`EveryFrame`).

A file that does not open, or has no readable frame, raises an error before any thread starts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from pathlib import Path
from threading import Event

import numpy as np

from edge_sdk.core.errors import CameraError, descriptor_shortage, missing_permission
from edge_sdk.core.frame import Image
from edge_sdk.sources.location import AS_IT_COMES, NOT_UTF8, SourceOptions, check_path, is_utf8
from edge_sdk.sources.opencv import OpenCvCapture, Rotation, open_file
from edge_sdk.sources.slot import OpenedSource, PicturesInTurn, Slot

_LONGEST_SKIP_NS = 500_000_000  # a reader slower than real time still delivers twice a second
_LONGEST_GAP_NS = 60_000_000_000  # between two frames; a longer gap means a broken time stamp
_NO_FRAME = "no frame can be read; expected a whole video file (AVI, MP4, MKV, …); is it truncated, or no video at all?"
_COUNT_TOLERANCE = 0.95  # the frame count in a header is often an estimate


class VideoFile:
    """An opened video file whose first frame was decoded; `fps` is the mean if the rate varies."""

    def __init__(self, path: Path, options: SourceOptions = AS_IT_COMES) -> None:
        self._path = path
        self._rotation, self._repeats = Rotation(options.rotate), options.repeat
        self.capture, self.first = self._opened()
        self.fps = self.capture.fps

    def retrieve_into(self, buffer: Image) -> Image | None:
        """Decode the grabbed frame, rotated as requested; see `Capture`."""
        return self._rotation.retrieve_into(self.capture, buffer)

    def grab(self) -> bool:
        """Grab the next frame, reopening a file that is repeated; return False at the end."""
        if self.capture.grab():
            return True
        if not self._repeats:
            return False
        self.capture.release()
        self.capture, _ = self._opened()
        return True

    def missing(self, read: int) -> int:
        """Return how many frames the header promises beyond `read`; 0 if the difference may be a rough estimate."""
        promised = self.capture.frame_count
        return int(promised) - read if math.isfinite(promised) and read < promised * _COUNT_TOLERANCE else 0

    def _opened(self) -> tuple[OpenCvCapture, Image]:
        """Open the file, grab its first frame, and return the capture and the frame."""
        location = str(self._path.absolute())
        check_path(location)
        capture = open_file(location)
        excess = capture.excess if capture else ""
        buffer = np.zeros((1, 1, 3), np.uint8)
        first = self._rotation.retrieve_into(capture, buffer) if capture and not excess and capture.grab() else None
        if capture is not None and first is not None:
            return capture, first
        if capture is not None:
            capture.release()
        trouble = excess or ("" if is_utf8(location) else NOT_UTF8) or missing_permission(self._path)
        raise CameraError(f"{self._path}: {trouble or descriptor_shortage() or _NO_FRAME}")


class FrameTimes:
    """Computes when the frames of a file are due.

    The file states the time of each frame, because the rate may vary. If a time is missing or runs backwards, the frame
    is due one period after the previous one.
    """

    def __init__(self, position_ms: float, fps: float) -> None:
        self._period_ns = round(1e9 / fps)
        self._base_ms, self._base_ns, self._due_ns = position_ms, 0, 0

    def due_ns(self, position_ms: float) -> int:
        """Return the nanoseconds after the first frame at which the frame at `position_ms` is due."""
        due_ns = 0
        if math.isfinite(position_ms):
            due_ns = self._base_ns + round((position_ms - self._base_ms) * 1e6)
        if not self._due_ns < due_ns <= self._due_ns + _LONGEST_GAP_NS:
            due_ns = self._due_ns + self._period_ns
            if math.isfinite(position_ms):
                self._base_ms, self._base_ns = position_ms, due_ns
        self._due_ns = due_ns
        return due_ns


class VideoSource(OpenedSource):
    """A video file in real time as a source: a frame is "captured" when it is due.

    The clock starts with the first request for a frame, so that no frame is lost while a model loads. A reader that
    falls behind skips frames, but never the last.
    """

    def __init__(self, video: VideoFile, camera: str) -> None:
        self._video = video
        self._period_ns = 1e9 / video.fps
        super().__init__(camera, video.fps)

    def read(self, slot: Slot, stop: Event) -> None:
        """Feed the slot until the file ends or `stop` is set."""
        try:
            slot.wanted.wait()
            self._play(slot, stop)
        finally:
            self._video.capture.release()

    def _play(self, slot: Slot, stop: Event) -> None:
        times = FrameTimes(self._video.capture.position_ms, self.fps)
        start_ns, start_at = time.monotonic_ns(), time.time()
        image: Image | None = self._video.first
        index, after_ns, last_ns = 0, 0, start_ns
        while True:
            if image is not None:
                if stop.wait(max(0, start_ns + after_ns - time.monotonic_ns()) / 1e9):
                    return
                last_ns = time.monotonic_ns()
                slot.put(image, start_ns + after_ns, start_at + after_ns / 1e9, index)
            index += 1
            if stop.is_set() or not self._video.grab():
                break
            after_ns = times.due_ns(self._video.capture.position_ms)
            image = self._retrieve(slot, index, start_ns + after_ns, last_ns)
        if not stop.is_set():
            self.unreadable += self._video.missing(index)

    def _retrieve(self, slot: Slot, index: int, due_ns: int, last_ns: int) -> Image | None:
        """Decode the grabbed frame unless it is late; the last one of the header's count is never skipped."""
        now_ns = time.monotonic_ns()
        is_late = now_ns - due_ns > self._period_ns and now_ns - last_ns < _LONGEST_SKIP_NS
        if is_late and index + 1 != self._video.capture.frame_count:
            slot.dropped += 1
            return None
        image = self._video.retrieve_into(slot.buffer())
        self.unreadable += image is None
        return image


class EveryFrame(PicturesInTurn):
    """A video file of which no frame is skipped."""

    def __init__(self, video: VideoFile, camera: str) -> None:
        self._video = video
        super().__init__(camera, video.fps)

    def pictures(self, slot: Slot) -> Generator[Image | None, None, None]:
        """Yield every frame of the file."""
        video, count = self._video, 1
        try:
            yield video.first
            while video.grab():
                yield video.retrieve_into(slot.buffer())
                count += 1
            self.unreadable += video.missing(count)
        finally:
            video.capture.release()
