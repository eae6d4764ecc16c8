"""Measure one candidate on the frames of a running loop.

A `Candidate` is a variant of a bundle with settings. A `Window` times its stages and tells when enough frames were
measured. A `Measurement` is the result. The module reads no clock of its own; callers pass one in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from edge_sdk.bundle.manifest import Manifest, Rating
from edge_sdk.core.clock import percentiles_of
from edge_sdk.core.errors import EdgeError
from edge_sdk.core.frame import Frame, Result
from edge_sdk.core.machine import Cores
from edge_sdk.core.protocols import Stage
from edge_sdk.inference.settings import SessionSettings

_Threads = Annotated[int, Meta(ge=1, le=256)]
_NonNegative = Annotated[float, Meta(ge=0)]


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One way of running a bundle: a variant with settings.

    It has only settings that affect speed. Records of candidates are read from disk, so none of them may name a file
    to write.

    Attributes:
        variant: name of the variant of the bundle.
        providers: execution providers, in order of preference.
        intra_op_num_threads: threads within one operator.
        inter_op_num_threads: parts of the graph that run at once, where several providers run it.
        allow_spinning: whether threads spin while they wait for each other within a run.
        arena: whether freed memory of tensors is kept for the next ones.
    """

    variant: str
    providers: tuple[str, ...]
    intra_op_num_threads: _Threads
    inter_op_num_threads: _Threads = 1
    allow_spinning: bool = False
    arena: bool = True

    @classmethod
    def promised(cls, manifest: Manifest) -> Candidate:
        """Return the candidate that the bundle states: its first variant, with the settings of its target."""
        return cls(
            variant=manifest.variants[0].name,
            providers=manifest.providers,
            intra_op_num_threads=manifest.intra_op_num_threads,
            allow_spinning=manifest.allow_spinning,
        )

    def within(self, cores: Cores) -> Candidate:
        """Return the same candidate with at most `cores.for_model` threads, where more than two cores are usable."""
        if cores.usable <= 2:
            return self
        return msgspec.structs.replace(self, intra_op_num_threads=min(self.intra_op_num_threads, cores.for_model))

    def settings(self, base: SessionSettings) -> SessionSettings:
        """Return the settings of the candidate's session; those that a candidate does not have are as in `base`."""
        return msgspec.structs.replace(
            base,
            providers=self.providers,
            intra_op_num_threads=self.intra_op_num_threads,
            allow_spinning=self.allow_spinning,
            inter_op_num_threads=self.inter_op_num_threads,
            arena=self.arena,
        )

    def __str__(self) -> str:
        """Return the candidate in words, such as `int8, 2 threads, spinning`."""
        threads = self.intra_op_num_threads
        words = [self.variant, f"{threads} thread{'s' if threads > 1 else ''}"]
        if self.allow_spinning and threads > 1:
            words.append("spinning")
        if self.inter_op_num_threads > 1:
            words.append(f"{self.inter_op_num_threads} branches at once")
        if not self.arena:
            words.append("no arena")
        if self.providers and self.providers[0] != "CPUExecutionProvider":
            words.append(self.providers[0].removesuffix("ExecutionProvider"))
        return ", ".join(words)


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The measured speed of a candidate, on frames that came at the camera's rate.

    Attributes:
        candidate: the candidate that was measured.
        quality: the quality that the bundle states, 0-1; None where it was not measured.
        like_reference: whether that quality cannot be told from the reference's on the build's images.
        p50_ms, p99_ms: time of prepare, run and decode. With about fifty frames the p99 is nearly the slowest one.
        cpu_share: the process's CPU time divided by the time that passed; 1 is one core.
        frames: number of frames that were measured.
        given_up: whether the measurement ended early, because the candidate could not keep the budget any more.
    """

    candidate: Candidate
    quality: float | None
    p50_ms: _NonNegative
    p99_ms: _NonNegative
    cpu_share: _NonNegative
    frames: Annotated[int, Meta(ge=1)]
    given_up: bool = False
    like_reference: bool = False

    @property
    def rating(self) -> Rating:
        """The quality of the variant that the bundle states."""
        return Rating(self.quality, self.like_reference)


_WARM_UP_FRAMES = 3  # frames that are not counted, in which buffers are made and caches filled
_LEAST_FRAMES = 20  # a percentile of fewer frames says little
_FEWEST_FRAMES = 5  # least frames where the camera stops early; a percentile of fewer says nothing
_HOPELESS_FRAMES = 2
_HOPELESS = 2.0  # times the budget
_MISSING_FRAMES = 3
_HICCUP = 0.7  # share of the budget: if half of the frames take less, a miss in the first window may be chance
_PATIENCE = 2.0  # times the expected duration of a window; a slower camera is measured on fewer frames
_PATIENCE_NS = 1_000_000_000


class Pace(msgspec.Struct, frozen=True):
    """The budget, frame rate and duration of a measurement.

    Attributes:
        budget_ms: the latency budget, from capture to outbox.
        fps: frames per second of the camera.
        window_s: how long one candidate is measured, in seconds.
    """

    budget_ms: float
    fps: float
    window_s: float

    @property
    def frames(self) -> int:
        """The number of frames of one window."""
        return max(_LEAST_FRAMES, round(self.window_s * self.fps))

    @property
    def longest_ns(self) -> int:
        """Nanoseconds after which a window is over, however many frames came."""
        return int(_PATIENCE * (self.frames + _WARM_UP_FRAMES) / self.fps * 1e9) + _PATIENCE_NS

    @property
    def expected_s(self) -> float:
        """Seconds that the measurement of a candidate takes, without loading it."""
        return (self.frames + _WARM_UP_FRAMES) / self.fps


class Window:
    """A stage that runs the stages of a candidate and measures them.

    Args:
        candidate: the candidate.
        stages: its stages.
        fallback: the stages that give the result where those of the candidate fail; None lets the error through.
        pace: budget, frame rate and duration of the measurement.
        on_fallback: called before `fallback` gives a result.
        clock_ns, cpu_ns: return the monotonic time and the process's CPU time, in nanoseconds.

    Attributes:
        stages: the stages of the candidate; None after `give_up`.
        failure: the last error of the stages, in words; empty where there was none.
    """

    def __init__(
        self,
        candidate: Candidate,
        stages: Stage[Frame, Result],
        fallback: Stage[Frame, Result] | None,
        pace: Pace,
        *,
        on_fallback: Callable[[], None] = lambda: None,
        clock_ns: Callable[[], int],
        cpu_ns: Callable[[], int],
    ) -> None:
        self.candidate, self.failure = candidate, ""
        self.stages: Stage[Frame, Result] | None = stages
        self._fallback, self._on_fallback, self._pace = fallback, on_fallback, pace
        self._clock_ns, self._cpu_ns = clock_ns, cpu_ns
        self._start_ns, self._start_cpu_ns = clock_ns(), cpu_ns()
        self._over_ns = self._start_ns + pace.longest_ns
        self._enough = pace.frames
        self._durations_ns = np.zeros(2 * pace.frames, np.int64)
        self._count = 0
        self._is_warm = self._given_up = False

    def __call__(self, frame: Frame, /) -> Result:
        """Return the result of one frame; must not be called after `give_up`."""
        if self.stages is None:
            raise ValueError("expected stages, they were given up")
        start_ns = self._clock_ns()
        try:
            result = self.stages(frame)
        except EdgeError as cause:
            if self._fallback is None:
                raise
            return self._fall_back(self._fallback, frame, str(cause))
        if not result.is_finite and self._fallback is not None:
            return self._fall_back(self._fallback, frame, "its outputs are NaN or infinite")
        if self._count < len(self._durations_ns):
            self._durations_ns[self._count] = self._clock_ns() - start_ns
            self._count += 1
        return result

    def _fall_back(self, fallback: Stage[Frame, Result], frame: Frame, failure: str) -> Result:
        self.failure = failure
        self._on_fallback()
        return fallback(frame)

    def give_up(self) -> Stage[Frame, Result] | None:
        """Return the stages and drop the reference to them."""
        stages, self.stages = self.stages, None
        return stages

    def is_over(self) -> bool:
        """Tell whether the measurement is over."""
        now_ns = self._clock_ns()
        self._given_up = self._cannot_keep_the_budget()
        if self._given_up or self.failure or now_ns >= self._over_ns:
            return True
        if self._is_warm:
            return self._count >= self._enough and not self._looks_again(now_ns)
        if self._count >= _WARM_UP_FRAMES:
            self._is_warm, self._count = True, 0
            self._start_ns, self._start_cpu_ns = now_ns, self._cpu_ns()
        return False

    def measurement(self, rating: Rating) -> Measurement | None:
        """Return the measurement; None where the candidate failed, or too few frames came."""
        found = percentiles_of(self._durations_ns[: self._count])
        elapsed_ns = self._clock_ns() - self._start_ns
        if found is None or self.failure or elapsed_ns <= 0:
            return None
        if self._count < _FEWEST_FRAMES and not self._given_up:
            return None
        return Measurement(
            candidate=self.candidate,
            quality=rating.value,
            like_reference=rating.like_reference,
            p50_ms=found.p50_ms,
            p99_ms=found.p99_ms,
            cpu_share=round((self._cpu_ns() - self._start_cpu_ns) / elapsed_ns, 3),
            frames=self._count,
            given_up=self._given_up,
        )

    def _looks_again(self, now_ns: int) -> bool:
        """Tell whether to measure twice as many frames, whose p99 is less affected by one slow frame."""
        found = percentiles_of(self._durations_ns[: self._count])
        budget_ms, most = self._pace.budget_ms, len(self._durations_ns)
        if found is None or self._enough == most or found.p99_ms <= budget_ms:
            return False
        self._enough = most
        self._over_ns = now_ns + self._pace.longest_ns
        return found.p50_ms <= budget_ms * _HICCUP

    def _cannot_keep_the_budget(self) -> bool:
        """Tell whether even the fastest frame is too slow, so that all but one frame a second would be dropped."""
        if self._count < _HOPELESS_FRAMES:
            return False
        fastest_ms = float(np.min(self._durations_ns[: self._count])) / 1e6
        budget_ms = self._pace.budget_ms
        return fastest_ms > budget_ms * _HOPELESS or (self._count >= _MISSING_FRAMES and fastest_ms > budget_ms)
