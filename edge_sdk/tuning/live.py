"""LiveTuner: give the running loop one candidate after the other, and then the best of them.

The tuner measures the frames that are published, at the camera's rate and under the real load; no frame runs twice.
Models are loaded in a thread beside the loop, one at a time and never while another model is measured. At most two
models are loaded at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

from edge_sdk.bundle.manifest import UNRATED
from edge_sdk.core.errors import EdgeError, StoppedError, typed_line
from edge_sdk.core.frame import Frame, Result
from edge_sdk.core.machine import CpuTime
from edge_sdk.core.protocols import Stage
from edge_sdk.core.threads import BackgroundTask
from edge_sdk.loop import Loop, Tick
from edge_sdk.tuning.candidates import Plan, Tuned
from edge_sdk.tuning.measurement import Candidate, Measurement, Window

_log = logging.getLogger(__name__)
LOAD_LIMIT_S = 120.0  # a trial of 60 s ends by itself after 90 s; a model that passed its trial loads much faster
_JOIN_S = 0.5  # a run that is told to stop must end within two seconds in all

T = TypeVar("T")
_Stages: TypeAlias = Stage[Frame, Result]
_Steps: TypeAlias = Generator[None, None, T]
"""Work that is done piece by piece, one piece after each step of the loop."""


class _HungError(Exception):
    """A model was not loaded in time."""


class LiveTuner:
    """An observer of the loop that tunes while the loop runs.

    Args:
        plan: what to measure, and for how long.
        home: the candidate that runs now, and its stages, which give the results while other candidates load.
        open_stages: loads and tests a candidate; called in a thread beside the loop, and may raise.
        load_limit_s: seconds after which a load, and tuning with it, is given up; they include the trial before it.
        remember: stores the result of tuning; called in a thread beside the loop, and may raise.
        on_trying: called with every candidate before it is loaded or measured.
        on_variant: called with the name of the variant that gives the next results, whenever it changes.
        on_tuned: called with the result of tuning, and with the reason why it could not be stored or "".
        read_cpu_time: returns the CPU time of the machine; called in the loop's thread, at the beginning and the end.
        clock_ns, cpu_ns: return the monotonic time and the process's CPU time, in nanoseconds.

    Attributes:
        done: whether tuning is over, so that the loop keeps its stages.
    """

    def __init__(
        self,
        plan: Plan,
        home: tuple[Candidate, _Stages],
        open_stages: Callable[[Candidate], _Stages],
        *,
        load_limit_s: float = LOAD_LIMIT_S,
        remember: Callable[[Tuned], None],
        on_tuned: Callable[[Tuned, str], None],
        on_trying: Callable[[Candidate], None] = lambda _candidate: None,
        on_variant: Callable[[str], None] = lambda _variant: None,
        read_cpu_time: Callable[[], CpuTime] = CpuTime.read,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        cpu_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self.plan, self.home, self.load_limit_s = plan, home[0], load_limit_s
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
        except _HungError as cause:
            _log.info(
                f"tuning is given up: {cause} was not loaded after {self.load_limit_s:g} s; what runs stays. The next "
                "start tries again, unless it is given --variant with a model that loads"
            )
        self._is_measuring, self.done = False, True
        self._leaving.extend(self._home_stages)
        self._home_stages.clear()
        self._task = BackgroundTask(self._leaving.clear, "tuning")

    def _measure_all(self, loop: Loop) -> _Steps[Tuned | None]:
        """Measure one candidate after the other while there is time; the first is always measured."""
        plan, began_ns, cpu_time = self.plan, self._clock_ns(), self._read_cpu_time()
        search, measured = plan.search(), list[Measurement]()
        asked, found = search.steps(), None
        self._is_measuring = True
        while True:
            try:
                candidate = asked.send(found)
            except StopIteration:
                break
            needed_ns = self._slowest_load_ns + plan.pace.expected_s * 1e9
            if measured and self._clock_ns() - began_ns + needed_ns > plan.seconds * 1e9:
                break
            found = yield from self._try(loop, candidate)
            measured.extend([found] if found else [])
        self._is_measuring = False
        if not measured:
            return None
        return Tuned.of(
            measured,
            plan.promise,
            plan.limits,
            metric=plan.metric,
            providers=plan.promise.providers,
            fps=plan.pace.fps,
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
                stages = yield from self._beside(candidate, lambda: self._open(candidate))
            except (StoppedError, _HungError):
                raise
            except Exception as cause:  # noqa: BLE001 - what is loaded is somebody else's; frames are still to be run
                _log.info(f"tuning passes over {candidate}: {_line(cause)}")
                return None
            finally:
                self._slowest_load_ns = max(self._slowest_load_ns, self._clock_ns() - began_ns)
        window = Window(
            candidate,
            stages,
            None if stages is home else home,
            self.plan.pace,
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
            stages, remark = yield from self._beside(tuned.chosen.candidate, end)
        except (StoppedError, _HungError):
            raise
        except Exception as cause:  # noqa: BLE001 - as above
            _log.info(f"tuning cannot load what it chose: {_line(cause)}; what ran before stays")
            return
        self._give(loop, stages, tuned.chosen.candidate.variant)
        self._on_tuned(tuned, remark)

    def _beside(self, candidate: Candidate, work: Callable[[], T]) -> _Steps[T]:
        """Run `work` for a candidate in a thread, which first frees the stages that are not needed any more."""
        leaving, began_ns = self._leaving, self._clock_ns()

        def clear_and_work() -> T:
            leaving.clear()
            return work()

        self._task = task = BackgroundTask(clear_and_work, "tuning")
        yield
        while not task.is_done:
            if self._clock_ns() - began_ns > self.load_limit_s * 1e9:
                task.close(0)
                self._task, self._leaving = None, []  # a new list: the old one belongs to the thread that hangs
                raise _HungError(str(candidate))  # tuning ends, as other code that changes stages waits for it
            yield
        self._task = None
        return task.take()

    def _give(self, loop: Loop, stages: _Stages, variant: str) -> None:
        loop.stages = stages
        self._on_variant(variant)


def _line(cause: Exception) -> str:
    return str(cause) if isinstance(cause, EdgeError) else typed_line(cause)
