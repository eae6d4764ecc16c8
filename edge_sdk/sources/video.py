"""Video files: in real time, like a camera (`VideoSource`), or every frame in turn (`EveryFrame`).

A file that does not open, or holds no frame that can be decoded, is an error before anything starts. `EveryFrame`
decodes the next frames while one is worked on; its buffers go round between the reading thread and the consumer, so
that no picture's memory is allocated per frame.
"""

from __future__ import annotations

import math
import time
import zlib
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread

import numpy as np

from edge_sdk.core.errors import CameraError, descriptor_shortage, missing_permission
from edge_sdk.core.frame import Frame, Image
from edge_sdk.core.threads import join_or_leave
from edge_sdk.sources.location import AS_IT_COMES, SourceOptions, check_path, check_utf8
from edge_sdk.sources.opencv import OpenCvCapture, Rotation, open_file
from edge_sdk.sources.slot import PATIENCE_S, Slot, SourceStats, SourceStatus, ThreadedSource, failed_reading

_LONGEST_SKIP_NS = 500_000_000  # who decodes slower than real time still delivers twice a second
_LONGEST_GAP_NS = 60_000_000_000  # between two frames; what is longer is a broken time
_NO_FRAME = "no frame can be read; expected a whole video file (AVI, MP4, MKV, …); is it truncated, or no video at all?"
_COUNT_TOLERANCE = 0.95  # the frame count in a header is often an estimate


class VideoFile:
    """An opened video file whose first frame was decoded.

    Args:
        path: the file.
        options: rotation and repetition.

    Attributes:
        capture: stands behind the first frame.
        first: that frame.
        fps: frames a second, their mean where it varies; 25 where the file says nothing sensible.

    Raises:
        CameraError: it may not be read, or is no video, or truncated so that nothing can be decoded.
    """

    def __init__(self, path: Path, options: SourceOptions = AS_IT_COMES) -> None:
        self._path = path
        self._rotation, self._repeats = Rotation(options.rotate), options.repeat
        self._version = _version(self._path)
        self.capture, self.first = self._opened()
        self.fps = self.capture.fps
        self._first_ms = self.capture.position_ms
        self._first_sum = zlib.crc32(self.first.data) if self._repeats else 0
        self._can_rewind: bool | None = None  # until it was tried

    def retrieve_into(self, buffer: Image) -> Image | None:
        """Decode the grabbed frame, turned as is wanted; see `Capture`."""
        return self._rotation.retrieve_into(self.capture, buffer)

    def grab(self) -> bool:
        """Go to the next frame; a file that is repeated begins again. False when there is none.

        Raises:
            CameraError: it is to begin again, and is away, is no video any more, or no file can be opened at present.
        """
        return self.capture.grab() or self._begin_again()

    def missing(self, read: int) -> int:
        """Return the frames that the header promises beyond the `read` ones, where clearly no error of estimate."""
        promised = self.capture.frame_count
        return int(promised) - read if math.isfinite(promised) and read < promised * _COUNT_TOLERANCE else 0

    def _begin_again(self) -> bool:
        if not self._repeats:
            return False
        version = _version(self._path)
        if version == self._version and self._is_rewound():
            return True
        self.capture.release()
        self.capture, _ = self._opened()
        if version != self._version:
            self._version, self._can_rewind = version, False  # what its first frame looks like was not noted
        return True

    def _is_rewound(self) -> bool:
        """Go back to the first frame without opening anything: an opening waits for cameras that hang in theirs.

        OpenCV says that it went there also of raw streams, which then have no frame, and of MPEG transport and program
        streams, which may go on in the middle. So the first time the picture is compared.
        """
        if self._can_rewind is not False:
            there = self.capture.rewind() and self.capture.position_ms == self._first_ms
            self._can_rewind = there and (self._can_rewind or self._shows_first())
        return self._can_rewind

    def _shows_first(self) -> bool:
        image = self._new_image(self.capture)
        return image is not None and zlib.crc32(image.data) == self._first_sum

    def _opened(self) -> tuple[OpenCvCapture, Image]:
        """Open the file and return it with its first frame grabbed, and that frame."""
        location = str(self._path.absolute())
        check_path(location)
        check_utf8(location)
        capture = open_file(location)
        excess = capture.excess if capture else ""
        first = self._new_image(capture) if capture and not excess and capture.grab() else None
        if capture is None or first is None:
            if capture is not None:
                capture.release()
            trouble = excess or missing_permission(self._path) or descriptor_shortage() or _NO_FRAME
            raise CameraError(f"{self._path}: {trouble}")
        return capture, first

    def _new_image(self, capture: OpenCvCapture) -> Image | None:
        return self._rotation.retrieve_into(capture, np.zeros((1, 1, 3), np.uint8))


def _version(path: Path) -> tuple[int, ...] | None:
    """Return what differs once a file was written or another one took its place; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class FrameTimes:
    """Says when the frames of a file are due.

    The file says it of each, because the rate may vary; where it does not, or says that time runs backwards, a frame
    comes one period after the one before it.

    Args:
        position_ms: of the first frame.
        fps: frames a second.
    """

    def __init__(self, position_ms: float, fps: float) -> None:
        self._period_ns = round(1e9 / fps)
        self._base_ms, self._base_ns, self._due_ns = position_ms, 0, 0

    def due_ns(self, position_ms: float) -> int:
        """Return the nanoseconds after the first frame at which the one is due that the file has at `position_ms`."""
        due_ns = 0
        if math.isfinite(position_ms):
            due_ns = self._base_ns + round((position_ms - self._base_ms) * 1e6)
        if not self._due_ns < due_ns <= self._due_ns + _LONGEST_GAP_NS:
            due_ns = self._due_ns + self._period_ns
            if math.isfinite(position_ms):
                self._base_ms, self._base_ns = position_ms, due_ns
        self._due_ns = due_ns
        return due_ns


class VideoSource(ThreadedSource):
    """A video file in real time as a source: a frame is "captured" when it is due.

    The clock starts when the first frame is asked for, so that nothing is lost while a model loads. A reader that
    falls behind leaves frames out, but never the last.

    Args:
        video: the opened file.
        camera: the stream's name.
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
        """Decode the grabbed frame unless it is late already; the last that the header promises never is."""
        now_ns = time.monotonic_ns()
        is_late = now_ns - due_ns > self._period_ns and now_ns - last_ns < _LONGEST_SKIP_NS
        if is_late and index + 1 != self._video.capture.frame_count:
            slot.skip()
            return None
        image = self._video.retrieve_into(slot.buffer())
        self.unreadable += image is None
        return image


_BUFFERS = 3  # one with the consumer, one that waits, one that is being written


class EveryFrame:
    """A `Source` that leaves no frame out; `captured_ns` is when a frame was handed over.

    Args:
        video: the opened file.
        camera: the stream's name.
    """

    paced = False
    trouble = ""
    remarks: tuple[str, ...] = ()

    def __init__(self, video: VideoFile, camera: str) -> None:
        self.fps = video.fps
        self._video, self._camera = video, camera
        self._free: SimpleQueue[Image | None] = SimpleQueue()
        self._ready: SimpleQueue[tuple[int, Image] | None] = SimpleQueue()
        self._held: Image | None = None
        self._ended = self._closed = False
        self._delivered = self._unreadable = 0
        self._failure: Exception | None = None
        self._ready.put((0, video.first))
        for _ in range(_BUFFERS - 1):
            self._free.put(np.zeros((1, 1, 3), np.uint8))
        self._thread = Thread(target=self._run, name=f"camera {camera}", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """True once the file was found to have no further frame."""
        return self._ended

    @property
    def stats(self) -> SourceStats:
        """Counts so far."""
        return SourceStats(delivered=self._delivered, unreadable=self._unreadable)

    @property
    def status(self) -> SourceStatus:
        """Opened or ended."""
        return SourceStatus.ENDED if self._ended else SourceStatus.OPENED

    def latest(self, timeout_s: float) -> Frame | None:
        """Return the next frame; None at the end, or when none was decoded within `timeout_s` seconds.

        Raises:
            CameraError: reading failed, and the frames before were taken.
        """
        if self._held is not None:
            self._free.put(self._held)
            self._held = None
        if self._ended:
            return None
        try:
            item = self._ready.get(timeout=timeout_s)
        except Empty:
            return None
        if item is None:
            self._ended = True
            if self._failure is not None:
                raise failed_reading(self._thread, self._failure) from self._failure
            return None
        index, self._held = item
        self._delivered += 1
        return Frame(self._held, time.monotonic_ns(), time.time(), index, self._camera)

    def close(self) -> None:
        """Stop reading and close the file; may be called twice."""
        self._ended = self._closed = True
        self._free.put(None)
        join_or_leave(self._thread, PATIENCE_S)

    def _run(self) -> None:
        try:
            self._read()
        except Exception as cause:  # noqa: BLE001 - a thread can raise to nobody: `latest` does it
            self._failure = cause
        finally:
            self._ready.put(None)
            self._video.capture.release()

    def _read(self) -> None:
        index = 1
        buffer: Image | None = None
        while True:
            buffer = self._free.get() if buffer is None else buffer
            if buffer is None or self._closed:
                return
            if not self._video.grab():
                self._unreadable += self._video.missing(index)
                return
            image = self._video.retrieve_into(buffer)
            if image is None:
                self._unreadable += 1
            else:
                self._ready.put((index, image))
                buffer = None
            index += 1
