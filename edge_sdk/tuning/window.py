"""Window: the frames on which one candidate is measured, and when it is enough.

Owns no clock and no thread: every call brings the time.
"""

from __future__ import annotations

import msgspec
import numpy as np

from edge_sdk.percentiles import percentiles_of
from edge_sdk.quality import Rating
from edge_sdk.tuning.candidate import Candidate, Measurement
from edge_sdk.tuning.timed import Timed

_WARM_UP_FRAMES = 3  # of a camera's own size: buffers are made, caches filled
_LEAST_FRAMES = 20  # a percentile of fewer says little
_FEWEST_FRAMES = 5  # where the camera stops in the middle; a percentile of fewer says nothing
_HOPELESS_FRAMES = 2
_HOPELESS = 2.0  # times the budget
_MISSING_FRAMES = 3
_HICCUP = 0.7  # of the budget: where half of the frames take less, a miss in the first window may have been anything
_PATIENCE = 2.0  # times what the camera's rate promises; a camera that delivers less is measured on fewer frames
_PATIENCE_NS = 1_000_000_000


class Pace(msgspec.Struct, frozen=True):
    """How long to look.

    Attributes:
        budget_ms: capture to outbox.
        fps: of the camera.
        window_s: how long a candidate is measured.
    """

    budget_ms: float
    fps: float
    window_s: float

    @property
    def frames(self) -> int:
        """Frames of one window."""
        return max(_LEAST_FRAMES, round(self.window_s * self.fps))

    @property
    def room(self) -> int:
        """The most frames that are looked at."""
        return 2 * self.frames

    @property
    def longest_ns(self) -> int:
        """After that a window is over, however many frames came."""
        return int(_PATIENCE * (self.frames + _WARM_UP_FRAMES) / self.fps * 1e9) + _PATIENCE_NS

    @property
    def expected_s(self) -> float:
        """What a candidate takes, its loading left out."""
        return (self.frames + _WARM_UP_FRAMES) / self.fps


class Window:
    """One candidate's.

    Args:
        candidate: what runs.
        timed: its stages with a clock.
        pace: how long to look.
        now_ns, cpu_ns: the time and the process's CPU time, in nanoseconds.
    """

    def __init__(self, candidate: Candidate, timed: Timed, pace: Pace, now_ns: int, cpu_ns: int) -> None:
        self.candidate, self.timed = candidate, timed
        self._pace = pace
        self._start_ns, self._start_cpu_ns = now_ns, cpu_ns
        self._over_ns = now_ns + pace.longest_ns
        self._enough = pace.frames
        self._is_warm = False
        self._given_up = False

    def is_over(self, now_ns: int, cpu_ns: int) -> bool:
        """Whether enough was seen."""
        timed = self.timed
        self._given_up = self._cannot_keep_the_budget()
        if self._given_up or timed.failure is not None or now_ns >= self._over_ns:
            return True
        if self._is_warm:
            return timed.count >= self._enough and not self._looks_again(now_ns)
        if timed.count >= _WARM_UP_FRAMES:
            timed.restart()
            self._is_warm = True
            self._start_ns, self._start_cpu_ns = now_ns, cpu_ns
        return False

    def measurement(self, rating: Rating, now_ns: int, cpu_ns: int) -> Measurement | None:
        """What was seen; None where it failed, or too little was."""
        found = percentiles_of(self.timed.durations_ns())
        elapsed_ns = now_ns - self._start_ns
        if found is None or self.timed.failure is not None or elapsed_ns <= 0:
            return None
        if self.timed.count < _FEWEST_FRAMES and not self._given_up:
            return None
        return Measurement(
            candidate=self.candidate,
            quality=rating.value,
            like_reference=rating.like_reference,
            p50_ms=found.p50_ms,
            p99_ms=found.p99_ms,
            cpu_share=round((cpu_ns - self._start_cpu_ns) / elapsed_ns, 3),
            frames=self.timed.count,
            given_up=self._given_up,
        )

    def _looks_again(self, now_ns: int) -> bool:
        """Whether one slow frame shall be forgiven: of twice as many frames the p99 leaves it out."""
        found = percentiles_of(self.timed.durations_ns())
        budget_ms = self._pace.budget_ms
        if found is None or self._enough == self._pace.room or found.p99_ms <= budget_ms:
            return False
        self._enough = self._pace.room
        self._over_ns = now_ns + self._pace.longest_ns
        return found.p50_ms <= budget_ms * _HICCUP

    def _cannot_keep_the_budget(self) -> bool:
        """Whether the fastest of the first frames is too slow: then one a second runs, and the others are dropped."""
        count = self.timed.count
        if count < _HOPELESS_FRAMES:
            return False
        fastest_ms = float(np.min(self.timed.durations_ns())) / 1e6
        budget_ms = self._pace.budget_ms
        return fastest_ms > budget_ms * _HOPELESS or (count >= _MISSING_FRAMES and fastest_ms > budget_ms)
