"""PacedImage: a camera that delivers one picture at a constant rate, for tuning without a camera."""

from __future__ import annotations

import time

from edge_sdk.frame import Frame, Image


class PacedImage:
    """A `Source` whose frame i is due at start + i / fps; the clock starts with the first one asked for.

    Args:
        image: uint8 (H, W, 3), BGR.
        fps: frames a second.
        camera: the stream's name.
    """

    ended = False

    def __init__(self, image: Image, fps: float, camera: str) -> None:
        self._image, self.fps, self._camera = image, fps, camera
        self._period_ns = 1e9 / fps
        self._start_ns: int | None = None
        self._next = 0

    def latest(self, timeout_s: float) -> Frame | None:
        """The newest frame that is due and was not delivered yet; None when none is within `timeout_s` seconds."""
        now_ns = time.monotonic_ns()
        start_ns = self._start_ns = self._start_ns or now_ns
        newest = int((now_ns - start_ns) / self._period_ns)
        if newest < self._next:
            newest = self._next
            wait_s = (start_ns + newest * self._period_ns - now_ns) / 1e9
            time.sleep(min(wait_s, timeout_s))
            if wait_s > timeout_s:
                return None
        self._next = newest + 1
        return Frame(self._image, start_ns + int(newest * self._period_ns), time.time(), newest, self._camera)

    def close(self) -> None:
        """Nothing is held."""
