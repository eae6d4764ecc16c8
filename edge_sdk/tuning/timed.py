"""Timed: stages with a clock around them, while they are measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import EdgeError
from edge_sdk.frame import Frame, Result
from edge_sdk.protocols import Stage


class Timed:
    """Stages that note how long each frame took.

    Args:
        stages: what is measured.
        fallback: what gives the result where they fail; None lets the error through.
        clock_ns: monotonic nanoseconds.
        room: the most durations that are kept; later ones are counted no more.
        on_fallback: called before `fallback` gives a result.

    Attributes:
        count: durations so far.
        failure: what the stages raised last.
    """

    def __init__(
        self,
        stages: Stage[Frame, Result],
        fallback: Stage[Frame, Result] | None,
        clock_ns: Callable[[], int],
        room: int,
        on_fallback: Callable[[], None] = lambda: None,
    ) -> None:
        self._stages: Stage[Frame, Result] | None = stages
        self._fallback, self._on_fallback, self._clock_ns = fallback, on_fallback, clock_ns
        self._durations_ns = np.zeros(room, np.int64)
        self.count = 0
        self.failure: str | None = None

    def __call__(self, frame: Frame, /) -> Result:
        """One frame's result; not after `give_up`."""
        if self._stages is None:
            raise ValueError("expected stages, they were given up")
        start_ns = self._clock_ns()
        try:
            result = self._stages(frame)
        except EdgeError as cause:
            if self._fallback is None:
                raise
            return self._fall_back(self._fallback, frame, str(cause))
        if not result.is_finite and self._fallback is not None:
            return self._fall_back(self._fallback, frame, "its outputs are NaN or infinite")
        if self.count < len(self._durations_ns):
            self._durations_ns[self.count] = self._clock_ns() - start_ns
            self.count += 1
        return result

    def _fall_back(self, fallback: Stage[Frame, Result], frame: Frame, failure: str) -> Result:
        self.failure = failure
        self._on_fallback()
        return fallback(frame)

    @property
    def stages(self) -> Stage[Frame, Result] | None:
        """As given; None after `give_up`."""
        return self._stages

    def durations_ns(self) -> NDArray[np.int64]:
        """Those so far, int64 (count,)."""
        return self._durations_ns[: self.count]

    def give_up(self) -> Stage[Frame, Result] | None:
        """Hold the stages no longer; returns them."""
        stages, self._stages = self._stages, None
        return stages

    def restart(self) -> None:
        """Forget them."""
        self.count = 0
