"""LiveTuner: give the running loop one candidate after the other, and then the best of them.

A `Window` times the stages of one candidate and tells when enough frames were measured. `LiveTuner` gives the loop one
window after the other: it measures the frames that are published, at the camera's rate and under the real load, and no
frame runs twice. Models are loaded in a thread beside the loop, one at a time and never while another model is
measured. At most two models are loaded at once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

import numpy as np

from edge_sdk.bundle.manifest import UNRATED, Rating
from edge_sdk.core.clock import percentiles_of
from edge_sdk.core.errors import EdgeError, StoppedError, failure_line
from edge_sdk.core.frame import Frame, Result
from edge_sdk.core.machine import CpuTime
from edge_sdk.core.protocols import Stage
from edge_sdk.core.threads import BackgroundTask
from edge_sdk.loop import Loop, Tick
from edge_sdk.tuning.candidates import WARM_UP_FRAMES, Candidate, Measurement, Plan, Search, Tuned

_log = logging.getLogger(__name__)
_JOIN_S = 0.5  # a run that is told to stop must end within two seconds in all

_FEWEST_FRAMES = 5  # least frames of a slow model, or where the camera stops early; a percentile of fewer says nothing
_HOPELESS_FRAMES = 2
_HOPELESS = 2.0  # times the budget
_MISSING_FRAMES = 3
_HICCUP = 0.7  # share of the budget: if half of the frames take less, a miss in the first window may be chance


class Window:
    """A stage that runs the stages of a candidate and measures them.

    Args:
        fallback: the stages that give the result where those of the candidate fail; None lets the error through.
        on_fallback: called before `fallback` gives a result.

    Attributes:
        stages: the stages of the candidate; None after `give_up`.
        failure: the last error of the stages, in words; empty where there was none.
    """

    def __init__(
        self,
        candidate: Candidate,
        stages: Stage[Frame, Result],
        fallback: Stage[Frame, Result] | None,
        plan: Plan,
        *,
        on_fallback: Callable[[], None] = lambda: None,
        clock_ns: Callable[[], int],
        cpu_ns: Callable[[], int],
    ) -> None:
        self.candidate, self.failure = candidate, ""
        self.stages: Stage[Frame, Result] | None = stages
        self._fallback, self._on_fallback, self._plan = fallback, on_fallback, plan
        self._clock_ns, self._cpu_ns = clock_ns, cpu_ns
        self._start_ns, self._start_cpu_ns = clock_ns(), cpu_ns()
        self._over_ns = self._start_ns + plan.longest_ns
        self._enough = plan.frames
        self._durations_ns = np.zeros(2 * plan.frames, np.int64)
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
        over_ns = self._over_ns
        if self._count < _FEWEST_FRAMES:  # the model itself may take longer for them than the camera's pace suggests
            over_ns += (WARM_UP_FRAMES + _FEWEST_FRAMES) * int(self._durations_ns.max())
        if self._given_up or self.failure or now_ns >= over_ns:
            return True
        if self._is_warm:
            return self._count >= self._enough and not self._looks_again(now_ns)
        if self._count >= WARM_UP_FRAMES:
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
        budget_ms, most = self._plan.limits.budget_ms, len(self._durations_ns)
        if found is None or self._enough == most or found.p99_ms <= budget_ms:
            return False
        self._enough = most
        self._over_ns = now_ns + self._plan.longest_ns
        return found.p50_ms <= budget_ms * _HICCUP

    def _cannot_keep_the_budget(self) -> bool:
        """Tell whether even the fastest frame is too slow, so that all but one frame a second would be dropped."""
        if self._count < _HOPELESS_FRAMES:
            return False
        fastest_ms = float(np.min(self._durations_ns[: self._count])) / 1e6
        budget_ms = self._plan.limits.budget_ms
        return fastest_ms > budget_ms * _HOPELESS or (self._count >= _MISSING_FRAMES and fastest_ms > budget_ms)


_T = TypeVar("_T")
_Stages: TypeAlias = Stage[Frame, Result]
_Steps: TypeAlias = Generator[None, None, _T]
"""Work that is done piece by piece, one piece after each step of the loop."""


class LiveTuner:
    """An observer of the loop that tunes while the loop runs, until it is `done` and the loop keeps its stages.

    While a model loads, the loop goes on with the stages that it has.

    Args:
        home: the candidate that runs now, and its stages, which give the results while other candidates load.
        open_stages, remember: load a candidate, and store the result; called in a thread beside the loop, may raise.
        on_trying: called with every candidate before it is loaded or measured.
        on_variant: called with the name of the variant that gives the next results, whenever it changes.
        on_tuned: called with the result, and with the reason why it could not be stored or "".
        load_s: seconds after which a load is given up.
    """

    def __init__(
        self,
        plan: Plan,
        home: tuple[Candidate, _Stages],
        open_stages: Callable[[Candidate], _Stages],
        *,
        remember: Callable[[Tuned], None],
        on_tuned: Callable[[Tuned, str], None],
        on_trying: Callable[[Candidate], None] = lambda _candidate: None,
        on_variant: Callable[[str], None] = lambda _variant: None,
        load_s: float = math.inf,
        read_cpu_time: Callable[[], CpuTime] = CpuTime.read,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        cpu_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self._load_s = load_s
        self.plan, self.home = plan, home[0]
        self._home_stages: list[_Stages] = [home[1]]
        self._open, self._remember = open_stages, remember
        self._on_tuned, self._on_trying, self._on_variant = on_tuned, on_trying, on_variant
        self._read_cpu_time, self._clock_ns, self._cpu_ns = read_cpu_time, clock_ns, cpu_ns
        self.done = False
        self._tick = Tick.IDLE
        self._tuning: _Steps[None] | None = None
        self._is_measuring = False
        self._slowest_load_ns = 0
        self._task: BackgroundTask[Any] | None = None
        self._leaving: list[object] = []  # freed in a thread, because freeing a session's memory takes milliseconds

    @property
    def is_loading(self) -> bool:
        """Whether a thread is at work beside the loop."""
        return self._task is not None and not self._task.is_done

    def after(self, loop: Loop, tick: Tick) -> None:
        """Continue tuning after one step of the loop, which may give the loop other stages; see `loop.LoopObserver`."""
        if self._tuning is None:
            if self.done or tick is Tick.IDLE:
                return
            self._tuning = self._tune(loop)
        self._tick = tick
        next(self._tuning, None)

    def close(self) -> None:
        """Give up tuning that is not finished, and wait half a second for a model that is being loaded."""
        if self._task is not None:
            self._task.close(_JOIN_S)
        # Once all candidates are measured, the thread stores the result, however long that takes.
        if self._is_measuring:
            _log.info("tuning was not finished: nothing is remembered")
        self._is_measuring, self._tuning, self.done = False, None, True

    def _tune(self, loop: Loop) -> _Steps[None]:
        try:
            tuned = yield from self._measure_all(loop)
            if tuned is None:
                _log.info("tuning could measure nothing: what runs stays")
            else:
                yield from self._take_over(loop, tuned)
        except StoppedError:  # the caller of the loop gets the same error
            return
        self._is_measuring, self.done = False, True
        self._leaving.extend(self._home_stages)
        self._home_stages.clear()
        self._task = BackgroundTask(self._leaving.clear, "tuning")

    def _measure_all(self, loop: Loop) -> _Steps[Tuned | None]:
        """Measure one candidate after the other while there is time, and until one keeps the budget."""
        plan, began_ns, cpu_time = self.plan, self._clock_ns(), self._read_cpu_time()
        search, measured = Search(plan), list[Measurement]()
        asked, found = search.steps(), None
        self._is_measuring = True
        while True:
            try:
                candidate = asked.send(found)
            except StopIteration:
                break
            needed_ns = self._slowest_load_ns + plan.expected_s * 1e9
            is_late = self._clock_ns() - began_ns + needed_ns > plan.seconds * 1e9
            if is_late and any(map(plan.limits.keeps_budget, measured)):
                break
            found = yield from self._try(loop, candidate)
            measured.extend([found] if found else [])
        self._is_measuring = False
        if not measured:
            return None
        return Tuned.of(
            plan,
            measured,
            seconds=(self._clock_ns() - began_ns) / 1e9,
            others=self._read_cpu_time().others_since(cpu_time),
            untried=search.untried(),
        )

    def _try(self, loop: Loop, candidate: Candidate) -> _Steps[Measurement | None]:
        """Load and measure one candidate; return None where either fails."""
        self._on_trying(candidate)
        [home] = self._home_stages
        stages = home
        if candidate != self.home:
            began_ns = self._clock_ns()
            try:
                stages = yield from self._beside(lambda: self._open(candidate))
            except StoppedError:
                raise
            except Exception as cause:  # noqa: BLE001 - a model may raise anything, and frames must still run
                _log.info(f"tuning passes over {candidate}: {failure_line(cause)}")
                return None
            finally:
                self._slowest_load_ns = max(self._slowest_load_ns, self._clock_ns() - began_ns)
        window = Window(
            candidate,
            stages,
            None if stages is home else home,
            self.plan,
            on_fallback=lambda: self._on_variant(self.home.variant),
            clock_ns=self._clock_ns,
            cpu_ns=self._cpu_ns,
        )
        del stages
        self._give(loop, window, candidate.variant)
        yield
        while not window.is_over():
            if self._tick is Tick.STALE:
                # Setting the stages again resets the drop rule. Otherwise a candidate with one slow frame would be
                # measured on only one frame a second.
                loop.stages = window
            yield
        found = window.measurement(self.plan.ratings.get(candidate.variant, UNRATED))
        self._give(loop, home, self.home.variant)
        self._leaving.append(window.give_up())
        if window.failure:
            _log.info(f"tuning passes over {candidate}: {window.failure}")
        return found

    def _take_over(self, loop: Loop, tuned: Tuned) -> _Steps[None]:
        """Load the chosen candidate, store the record, and give the candidate to the loop."""

        def end() -> tuple[_Stages, str]:
            chosen = tuned.chosen.candidate
            stages = self._home_stages[0] if chosen == self.home else self._open(chosen)
            try:
                self._remember(tuned)
            except EdgeError as cause:  # the result is valid even where the disk is full or read-only
                return stages, str(cause)
            return stages, ""

        try:
            stages, remark = yield from self._beside(end)
        except StoppedError:
            raise
        except Exception as cause:  # noqa: BLE001 - what ran before goes on
            _log.info(f"tuning cannot load what it chose: {failure_line(cause)}; what ran before stays")
            return
        self._give(loop, stages, tuned.chosen.candidate.variant)
        self._on_tuned(tuned, remark)

    def _beside(self, work: Callable[[], _T]) -> _Steps[_T]:
        """Run `work` in a thread, which first frees the stages that are not needed any more."""

        def clear_and_work() -> _T:
            self._leaving.clear()
            return work()

        self._task = task = BackgroundTask(clear_and_work, "tuning", limit_s=self._load_s)
        yield
        while not task.is_done:
            yield
        self._task = None
        return task.take()

    def _give(self, loop: Loop, stages: _Stages, variant: str) -> None:
        loop.stages = stages
        self._on_variant(variant)
