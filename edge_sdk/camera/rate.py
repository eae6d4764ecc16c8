"""How many frames a second a camera really gives.

Many say nothing, and FFmpeg's own guess was 29.8 for a stream of 10; of MJPEG over HTTP it says 25 whatever comes.
"""

from __future__ import annotations

_FRAMES = 50
_TOLERANCE = 0.1


class Rate:
    """Counts frames.

    Args:
        stated_fps: what the camera promises.

    Attributes:
        fps: that, or what the last fifty frames came to where it differs by more than a tenth.
    """

    def __init__(self, stated_fps: float) -> None:
        self.fps = stated_fps
        self._stated_fps = stated_fps
        self._frames = 0
        self._since_ns = 0

    def note(self, got_ns: int) -> None:
        """Count a frame.

        Args:
            got_ns: monotonic nanoseconds.
        """
        if self._frames == 0:
            self._since_ns = got_ns
        elif self._frames == _FRAMES:
            if got_ns > self._since_ns:
                measured = _FRAMES * 1e9 / (got_ns - self._since_ns)
                differs = abs(measured - self._stated_fps) > _TOLERANCE * self._stated_fps
                self.fps = measured if differs else self._stated_fps
            self._frames, self._since_ns = 0, got_ns
        self._frames += 1
