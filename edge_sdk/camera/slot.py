"""The slot that holds the freshest frame.

Owns three buffers that rotate between the reader (who writes one), the slot (which keeps the newest) and the consumer
(who holds one), so that no picture's memory is allocated per frame and none is written while somebody looks at it.
"""

from __future__ import annotations

import time
from threading import Event, Lock

import numpy as np

from edge_sdk.frame import Frame, Image

_SETTLING_S = 0.1  # a picture that was kept comes as soon as the one before it is decoded
_LOOK_S = 0.002


class Slot:
    """One reader thread puts, one consumer takes; the newest wins.

    Args:
        camera: the stream's name.

    Attributes:
        wanted: set by the first `latest()`, or by `finish()`.
    """

    def __init__(self, camera: str) -> None:
        self.wanted = Event()
        self._camera = camera
        self._buffers: list[Image] = [np.zeros((1, 1, 3), np.uint8) for _ in range(3)]
        self._free, self._ready, self._held = 0, 1, 2
        self._lock = Lock()
        # Held while there is nothing to take. A lock and not a condition, whose wait in Python costs twice as much.
        self._nothing = Lock()
        self._nothing.acquire()
        self._newest: Frame | None = None
        self._settled_s = 0.0  # monotonic seconds from which the newest is handed out
        self._finished = False
        self._delivered = 0
        self._dropped = 0

    @property
    def ended(self) -> bool:
        """True once the reader finished and its last frame was taken."""
        return self._finished and self._newest is None

    @property
    def delivered(self) -> int:
        """Frames that were handed out."""
        return self._delivered

    @property
    def dropped(self) -> int:
        """Frames that were overwritten or skipped."""
        return self._dropped

    def buffer(self) -> Image:
        """The buffer that the reader may write into; nobody else looks at it. One pixel before the first frames."""
        return self._buffers[self._free]

    def put(
        self, image: Image, captured_ns: int, captured_at: float, seq: int, *, settles: bool = False, delay_ns: int = 0
    ) -> None:
        """Make a picture the newest.

        Args:
            image: `buffer()` itself, or another array (then kept as a buffer) where that had the wrong size.
            captured_ns: monotonic nanoseconds.
            captured_at: seconds since the epoch.
            seq: the frame's number.
            settles: a newer one is likely to come at once: this one is handed out only if none does.
            delay_ns: see `Frame`.
        """
        frame = Frame(image, captured_ns, captured_at, seq, self._camera, delay_ns)
        with self._lock:
            if self._finished:
                return
            self._buffers[self._free] = image
            self._free, self._ready = self._ready, self._free
            self._settled_s = time.monotonic() + _SETTLING_S if settles else 0.0
            if self._newest is None:
                self._nothing.release()
            else:
                self._dropped += 1
            self._newest = frame

    def skip(self) -> None:
        """Count a frame that the reader left out."""
        self._dropped += 1

    def latest(self, timeout_s: float) -> Frame | None:
        """The newest frame not delivered yet, or None when none came within `timeout_s` seconds or none will come."""
        if not self.wanted.is_set():
            self.wanted.set()
        until_s = time.monotonic() + timeout_s
        if not self._nothing.acquire(timeout=timeout_s):
            return None
        while self._settled_s > (now_s := time.monotonic()) and not self._finished:
            if now_s >= until_s:
                self._nothing.release()
                return None
            time.sleep(min(_LOOK_S, until_s - now_s))
        with self._lock:
            if self._finished:
                self._nothing.release()  # who asks again does not wait
            frame, self._newest = self._newest, None
            if frame is not None:
                self._ready, self._held = self._held, self._ready
                self._delivered += 1
            return frame

    def finish(self) -> None:
        """Say that no frame will come any more; one that waits can still be taken."""
        with self._lock:
            if not self._finished and self._newest is None:
                self._nothing.release()
            self._finished = True
            self.wanted.set()
