"""The true age of the frames of a network stream.

FFmpeg looks at a stream for a while before it is open, keeps what came meanwhile and then hands it out at once:
without this the first 28 frames of an RTSP camera were stamped as new while being up to 1.1 s old. And of what is no
JPEG it returns a frame only when the next one begins to arrive, because nothing else tells it where a frame ends.
"""

from __future__ import annotations

_WAITED = 0.5  # a grab that took this share of a frame period waited for the camera, so nothing was buffered


class Backlog:
    """Says when a frame was captured.

    Args:
        since_ns: monotonic nanoseconds at which the opening began, and so the buffering; None: nothing was buffered.
        fps: frames a second.
        comes_with_next: see `Capture`.
    """

    def __init__(self, since_ns: int | None, fps: float, *, comes_with_next: bool = False) -> None:
        self._period_ns = int(1e9 / fps)
        self._estimate_ns = since_ns
        self._comes_with_next = comes_with_next
        self._before_ns: int | None = None  # when the grab before returned

    def captured_ns(self, asked_ns: int, got_ns: int) -> int:
        """When a frame was captured: when it began to arrive, or the estimate while the backlog lasts.

        Args:
            asked_ns: monotonic nanoseconds before the grab.
            got_ns: and right after it.
        """
        before_ns, self._before_ns = self._before_ns, got_ns
        if self._estimate_ns is not None:
            captured_ns = self._estimate_ns
            self._estimate_ns += self._period_ns
            if captured_ns < got_ns and got_ns - asked_ns < self._period_ns * _WAITED:
                return captured_ns
            self._estimate_ns = None
            if self._comes_with_next:  # it began to arrive before the last buffered one was handed out, and after it
                return max(min(got_ns - self._period_ns, before_ns or got_ns), captured_ns - self._period_ns)
        return before_ns if self._comes_with_next and before_ns is not None else got_ns

    def delay_ns(self, captured_ns: int, got_ns: int) -> int:
        """Of a live frame's age what it waited for the next one: no other frame comes sooner."""
        return got_ns - captured_ns if self._comes_with_next and self._estimate_ns is None else 0

    def was_kept(self, captured_ns: int, got_ns: int) -> bool:
        """Whether this frame was buffered and is older than a period, so that a newer one is likely to wait already.

        It may be the only one: how many came meanwhile, FFmpeg does not say.
        """
        return self._estimate_ns is not None and got_ns - captured_ns > self._period_ns
