"""The true age of the first frames of a network stream.

FFmpeg looks at a stream for a while before it is open, keeps what came meanwhile and then hands it out at once:
without this the first 28 frames of an RTSP camera were stamped as new while being up to 1.1 s old.
"""

from __future__ import annotations

_WAITED = 0.5  # a grab that took this share of a frame period waited for the camera, so nothing was buffered


class Backlog:
    """Says when a frame was captured.

    Args:
        since_ns: monotonic nanoseconds at which the opening began, and so the buffering; None: nothing was buffered.
        fps: frames a second.
    """

    def __init__(self, since_ns: int | None, fps: float) -> None:
        self._period_ns = int(1e9 / fps)
        self._estimate_ns = since_ns

    def captured_ns(self, asked_ns: int, got_ns: int) -> int:
        """When a frame was captured: `got_ns`, or the estimate while the backlog lasts.

        Args:
            asked_ns: monotonic nanoseconds before the grab.
            got_ns: and right after it.
        """
        if self._estimate_ns is None:
            return got_ns
        captured_ns = self._estimate_ns
        self._estimate_ns += self._period_ns
        if captured_ns >= got_ns or got_ns - asked_ns >= self._period_ns * _WAITED:
            self._estimate_ns = None
            return got_ns
        return captured_ns

    def was_kept(self, captured_ns: int, got_ns: int) -> bool:
        """Whether this frame was buffered and is older than a period, so that a newer one is likely to wait already.

        It may be the only one: how many came meanwhile, FFmpeg does not say.
        """
        return self._estimate_ns is not None and got_ns - captured_ns > self._period_ns
