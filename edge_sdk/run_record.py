"""RunRecord: how a run goes, in buffers of fixed size: memory stays flat however long it runs."""

from __future__ import annotations

import time

import numpy as np

from edge_sdk.frame import Result
from edge_sdk.loop import Loop, Tick
from edge_sdk.percentiles import Percentiles, percentiles_of

_RECENT = 4096  # results that the percentiles look at


class RunRecord:
    """A supervisor that notes ages and inference times of recent results, as the loop has them; a sink, too.

    Attributes:
        results: how many there were in all.
        not_finite: of them, those of outputs that were no numbers.
    """

    def __init__(self) -> None:
        self.results = self.not_finite = 0
        self._ages_ns = np.zeros(_RECENT, np.int64)
        self._serial_ns = np.zeros(_RECENT, np.int64)
        self._inference_ns = np.zeros(_RECENT, np.int64)
        self._first_ns = self._last_ns = 0

    def put(self, result: Result) -> None:
        """Count what is not finite, of which the loop knows nothing."""
        if not result.is_finite:
            self.not_finite += 1

    def after(self, loop: Loop, tick: Tick) -> None:
        """Note one step's result; see `Supervisor`."""
        if tick is not Tick.ON_TIME and tick is not Tick.LATE:
            return
        slot = self.results % _RECENT
        self._ages_ns[slot] = loop.last_age_ns
        self._serial_ns[slot] = loop.last_serial_ns
        self._inference_ns[slot] = loop.last_run_ns
        self._last_ns = time.monotonic_ns()
        self._first_ns = self._first_ns or self._last_ns
        self.results += 1

    def age(self) -> Percentiles | None:
        """Capture to outbox."""
        return percentiles_of(self._ages_ns[: min(self.results, _RECENT)])

    def serial(self) -> Percentiles | None:
        """From taking a frame to the outbox: age without waiting."""
        return percentiles_of(self._serial_ns[: min(self.results, _RECENT)])

    def inference(self) -> Percentiles | None:
        """The bare run."""
        return percentiles_of(self._inference_ns[: min(self.results, _RECENT)])

    def fps(self) -> float:
        """Results a second, from the first to the last."""
        span_s = (self._last_ns - self._first_ns) / 1e9
        return (self.results - 1) / span_s if self.results > 1 and span_s > 0 else 0.0

    def line(self, loop: Loop) -> str:
        """How it goes, for people."""
        age, inference = self.age(), self.inference()
        if age is None or inference is None:
            return "no frame yet"
        return (
            f"{self.results} results, {self.fps():.1f} a second; age p50 {age.p50_ms:.1f} p99 {age.p99_ms:.1f} ms, "
            f"inference p50 {inference.p50_ms:.1f} ms; {loop.counts[Tick.LATE]} late, {loop.counts[Tick.STALE]} stale"
            + (f", {loop.counts[Tick.SKIPPED]} left out" if loop.counts[Tick.SKIPPED] else "")
        )
