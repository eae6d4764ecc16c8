"""Deadline arithmetic: may this frame still make it?

Owns the drop rule and no clock: every call brings the time. Capture to outbox, in monotonic nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_WINDOW = 64  # recent steps that the estimate looks at: about two seconds of a camera
_PROBE_INTERVAL_NS = 1_000_000_000  # one late frame a second always runs, else a slow spell could never be seen to end


class Budget:
    """Latency budget of one stream.

    A frame is dropped when its age plus the 90th percentile of recent prepare + run + decode durations exceeds the
    budget; one probe a second always runs, and one that was fast enough ends the spell.

    Args:
        latency_ms: capture to outbox, in milliseconds.
        drops: False for images that come in turn: none is fresher, so none is dropped, however late.
    """

    def __init__(self, latency_ms: float, *, drops: bool = True) -> None:
        self._drops = drops
        self.limit_ns = int(latency_ms * 1e6)
        self._recent: deque[int] = deque(maxlen=_WINDOW)
        self._sorted: list[int] = []
        self._last_run_ns: int | None = None
        self._probe_age_ns: int | None = None

    def expected_ns(self) -> int:
        """The 90th percentile of recent durations in nanoseconds; 0 before the first."""
        count = len(self._sorted)
        return self._sorted[min(count - 1, count * 9 // 10)] if count else 0

    def admits(self, captured_ns: int, now_ns: int) -> bool:
        """Whether a frame captured at `captured_ns` shall run at `now_ns`; says yes once a second whatever its age."""
        # A frame from the future, as a driver's clock may have it, has no time to spare for that.
        age_ns = max(0, now_ns - captured_ns)
        makes_it = not self._drops or age_ns + self.expected_ns() <= self.limit_ns
        is_probe_due = self._last_run_ns is None or now_ns - self._last_run_ns >= _PROBE_INTERVAL_NS
        if not (makes_it or is_probe_due):
            return False
        self._last_run_ns = now_ns
        self._probe_age_ns = None if makes_it else age_ns
        return True

    def record(self, duration_ns: int) -> None:
        """Remember how long prepare + run + decode of the frame took that was admitted last."""
        if self._probe_age_ns is not None and self._probe_age_ns + duration_ns <= self.limit_ns:
            # At one probe a second those of the slow spell would fill the window for a minute after it.
            self.forget()
        if len(self._recent) == _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(duration_ns)
        insort(self._sorted, duration_ns)

    def forget(self) -> None:
        """Expect nothing: what runs from now on is another model, or another load."""
        self._recent.clear()
        self._sorted.clear()

    def is_late(self, captured_ns: int, now_ns: int) -> bool:
        """Whether a result delivered at `now_ns` missed its deadline."""
        return now_ns - captured_ns > self.limit_ns
