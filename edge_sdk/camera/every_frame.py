"""Every frame of a video file in turn, as fast as they are taken: the next ones are decoded while one is worked on.

Owns the buffers that go round between the reading thread and the consumer; no picture's memory is allocated per frame.
"""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue
from threading import Thread

import numpy as np

from edge_sdk.camera.stats import SourceStats, SourceStatus
from edge_sdk.camera.threaded import PATIENCE_S, failed_reading
from edge_sdk.camera.video import VideoFile
from edge_sdk.frame import Frame, Image
from edge_sdk.left_behind import join_or_leave

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
        """The next frame; None at the end, or when none was decoded within `timeout_s` seconds.

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
