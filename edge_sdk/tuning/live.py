"""LiveTuner: gives the running loop one candidate after the other, and then the best of them.

Measured are the very frames that are published, at the camera's pace and under the real load; nothing runs twice.
Models are loaded beside the loop, one at a time, never while another is measured, and two at most are there at once.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec

from edge_sdk.bundle.manifest import UNRATED
from edge_sdk.core.errors import EdgeError, StoppedError, typed_line
from edge_sdk.core.frame import Frame, Result
from edge_sdk.core.machine import Cores, CpuTime
from edge_sdk.core.protocols import Stage
from edge_sdk.core.threads import BackgroundTask
from edge_sdk.loop import Loop, Tick
from edge_sdk.tuning.candidates import Plan, Tuned
from edge_sdk.tuning.measurement import Candidate, Measurement, Timed, Window

_log = logging.getLogger(__name__)
_RESTARTS = 2  # cores that come and go all the time are not worth measuring
LOAD_LIMIT_S = 120.0  # a trial of 60 s ends by itself after 90; the model that it found sound loads in far less
Value = TypeVar("Value")
_JOIN_S = 0.5  # a run that is told to stop has two seconds for all that it gives back

_Stages: TypeAlias = Stage[Frame, Result]
Open = Callable[[Candidate], _Stages]
"""Loads a candidate and proves it; runs beside the loop, and may raise."""


class _Phase(enum.Enum):
    WAITING = "for the first frame"
    LOADING = "a candidate"
    MEASURING = "one"
    ENDING = "with the chosen one"
    DONE = "for good"


class LiveTuner:
    """A supervisor of the loop that tunes while it runs.

    Args:
        plan: what to measure, and for how long.
        home: what runs now, and its stages; they give the results while candidates load.
        open_stages: loads a candidate.
        load_limit_s: seconds after which a load is given up, and tuning with it; a trial that comes before it counts.
        remember: keeps what came out; called beside the loop, and may raise.
        on_trying: called with every candidate before it is loaded or measured.
        on_variant: called with the variant of the next results, or of the one that is being made, whenever another
            one answers.
        on_tuned: called with what came out, and why it is not remembered; empty where it is.
        read_cores: the cores that may be used now; called beside the loop.
        read_cpu_time: what the processors did so far; called in the loop's thread, at the beginning and at the end.
        clock_ns, cpu_ns: monotonic time and the process's CPU time, in nanoseconds.

    Attributes:
        plan: what is measured, on the cores that there are now.
        load_limit_s: see above.
        tuned: what came out; None until then, and where nothing could be measured.
    """

    def __init__(
        self,
        plan: Plan,
        home: tuple[Candidate, Stage[Frame, Result]],
        open_stages: Open,
        *,
        load_limit_s: float = LOAD_LIMIT_S,
        remember: Callable[[Tuned], None],
        on_tuned: Callable[[Tuned, str], None],
        on_trying: Callable[[Candidate], None] = lambda _candidate: None,
        on_variant: Callable[[str], None] = lambda _variant: None,
        read_cores: Callable[[], Cores] = Cores.read,
        read_cpu_time: Callable[[], CpuTime] = CpuTime.read,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        cpu_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self.plan = plan
        self._home: tuple[Candidate, _Stages] | None = home
        self._open, self._remember = open_stages, remember
        self._on_tuned, self._on_trying, self._on_variant = on_tuned, on_trying, on_variant
        self._read_cores, self._read_cpu_time = read_cores, read_cpu_time
        self._clock_ns, self._cpu_ns, self.load_limit_s = clock_ns, cpu_ns, load_limit_s
        self._phase = _Phase.WAITING
        self._restarts = 0
        self._discarded: list[object] = []
        self._loading: BackgroundTask[tuple[_Stages, Cores]] | None = None
        self._ending: BackgroundTask[_End | Cores] | None = None
        self._window: Window | None = None
        self.tuned: Tuned | None = None

    @property
    def home(self) -> Candidate | None:
        """The candidate that gives the results while others load; None at the end."""
        return self._home[0] if self._home else None

    @property
    def done(self) -> bool:
        """Whether the loop has the stages that stay."""
        return self._phase is _Phase.DONE

    @property
    def is_loading(self) -> bool:
        """Whether something is under way beside the loop."""
        return any(job is not None and not job.is_done for job in (self._loading, self._ending))

    def after(self, loop: Loop, tick: Tick) -> None:
        """Go on after one step; now and then the loop gets other stages. See `loop.Supervisor`."""
        if self._phase is _Phase.DONE:
            return
        if self._phase is _Phase.WAITING:
            if tick is not Tick.IDLE:
                self._begin(loop)
        elif self._window is not None:
            if self._window.is_over(self._clock_ns(), self._cpu_ns()):
                self._note(loop, self._window)
            elif tick is Tick.STALE:
                # Setting them anew makes the drop rule forget: a candidate that had one slow frame is measured on the
                # next, and not on one a second.
                loop.stages = self._window.timed
        elif self.is_loading:
            self._abandon_hung()
        elif self._loading is not None:
            self._take(loop, self._loading)
        elif self._ending is not None:
            self._finish(loop, self._ending)

    def close(self) -> None:
        """Give up what is not finished; waits a moment for a model that is being loaded."""
        for job in (self._loading, self._ending):
            if job is not None:
                job.close(_JOIN_S)
        # At its end there is something, and it is kept by whoever writes it, however long that takes.
        if self._phase in (_Phase.LOADING, _Phase.MEASURING):
            _log.info("tuning was not finished: nothing is remembered")
        self._phase = _Phase.DONE

    def _abandon_hung(self) -> None:
        """Give a load up that takes too long: everybody else who changes stages waits for tuning."""
        if self._clock_ns() - self._load_start_ns <= self.load_limit_s * 1e9:
            return
        for job in (self._loading, self._ending):
            if job is not None:
                job.close(0)
        self._loading = self._ending = None
        _log.info(
            f"tuning is given up: {self._wanted} was not loaded after {self.load_limit_s:g} s; what runs stays. The "
            "next start tries again, unless it is given --variant with a model that loads"
        )
        self._discarded = []  # the other list is that of the thread which hangs
        self._retire()

    def _begin(self, loop: Loop) -> None:
        self._measured: list[Measurement] = []
        self._started_ns, self._cpu_before = self._clock_ns(), self._read_cpu_time()
        self._slowest_load_ns = 0
        self._search = self.plan.search()
        self._steps = self._search.steps()
        self._go_on(loop, next(self._steps))

    def _go_on(self, loop: Loop, candidate: Candidate | None) -> None:
        """Measure this one next; with none, or no time for it, come to an end."""
        if candidate is None or not self._has_time():
            self._conclude()
            return
        self._on_trying(candidate)
        if candidate == self._at_home[0]:
            self._measure(loop, *self._at_home)
        else:
            self._phase = _Phase.LOADING
            self._wanted, self._load_start_ns = candidate, self._clock_ns()
            self._loading = self._beside(lambda: (self._open(candidate), self._read_cores()))

    def _take(self, loop: Loop, loading: BackgroundTask[tuple[_Stages, Cores]]) -> None:
        self._loading = None
        self._slowest_load_ns = max(self._slowest_load_ns, self._clock_ns() - self._load_start_ns)
        try:
            stages, cores = loading.take()
        except StoppedError:  # whoever steps the loop is told the same
            return
        except Exception as cause:  # noqa: BLE001 - what is loaded is somebody else's, and frames are still to be run
            _log.info(f"tuning passes over {self._wanted}: {_line(cause)}")
            self._go_on(loop, self._next(None))
            return
        if self._has_other_cores(cores):
            self._discarded.append(stages)
            del stages
            self._restart(loop, cores)
        else:
            self._measure(loop, self._wanted, stages)

    def _measure(self, loop: Loop, candidate: Candidate, stages: _Stages) -> None:
        (at_home, home), on_variant = self._at_home, self._on_variant
        fallback = None if stages is home else home
        timed = Timed(
            stages, fallback, self._clock_ns, self.plan.pace.room, on_fallback=lambda: on_variant(at_home.variant)
        )
        self._give(loop, timed, candidate.variant)
        self._window = Window(candidate, timed, self.plan.pace, self._clock_ns(), self._cpu_ns())
        self._phase = _Phase.MEASURING

    def _note(self, loop: Loop, window: Window) -> None:
        rating = self.plan.ratings.get(window.candidate.variant, UNRATED)
        found = window.measurement(rating, self._clock_ns(), self._cpu_ns())
        self._window = None
        self._give(loop, self._at_home[1], self._at_home[0].variant)
        self._discarded.append(window.timed.give_up())
        if found is not None:
            self._measured.append(found)
        elif window.timed.failure is not None:
            _log.info(f"tuning passes over {window.candidate}: {window.timed.failure}")
        self._go_on(loop, self._next(found))

    def _has_other_cores(self, cores: Cores) -> bool:
        return cores != self.plan.cores and self._restarts < _RESTARTS

    def _restart(self, loop: Loop, cores: Cores) -> None:
        _log.info(f"cores that may be used: {cores.allowed} now, {self.plan.cores.allowed} before; tuning anew")
        self._restarts += 1
        self.plan = msgspec.structs.replace(self.plan, cores=cores)
        self._begin(loop)

    def _next(self, found: Measurement | None) -> Candidate | None:
        try:
            return self._steps.send(found)
        except StopIteration:
            return None

    def _has_time(self) -> bool:
        """Whether one more fits; the first always does."""
        needed_ns = self._slowest_load_ns + self.plan.pace.expected_s * 1e9
        elapsed_ns = self._clock_ns() - self._started_ns
        return not self._measured or elapsed_ns + needed_ns <= self.plan.seconds * 1e9

    def _conclude(self) -> None:
        if not self._measured:
            _log.info("tuning could measure nothing: what runs stays")
            self._retire()
            return
        others = self._read_cpu_time().others_since(self._cpu_before)
        took_s, untried = (self._clock_ns() - self._started_ns) / 1e9, self._search.untried()
        plan = self.plan
        tuned = Tuned.of(
            self._measured,
            plan.promise,
            plan.limits,
            metric=plan.metric,
            providers=plan.providers,
            fps=plan.pace.fps,
            seconds=took_s,
            others=others,
            untried=untried,
        )
        self._wanted, self._load_start_ns = tuned.chosen.candidate, self._clock_ns()
        self._ending = self._beside(lambda: self._end(tuned))
        self._phase = _Phase.ENDING

    def _end(self, tuned: Tuned) -> _End | Cores:
        """Load what was chosen and keep the record, beside the loop; or return the cores where they are others now."""
        cores = self._read_cores()
        if self._has_other_cores(cores):
            return cores
        candidate, home = self._at_home
        chosen = tuned.chosen.candidate
        stages = home if candidate == chosen else self._open(chosen)
        try:
            self._remember(tuned)
        except EdgeError as cause:  # a disk that is full or read-only takes nothing from what was found
            return tuned, stages, str(cause)
        return tuned, stages, ""

    def _finish(self, loop: Loop, ending: BackgroundTask[_End | Cores]) -> None:
        self._ending = None
        try:
            ended = ending.take()
        except StoppedError:
            return
        except Exception as cause:  # noqa: BLE001 - as above
            _log.info(f"tuning cannot load what it chose: {_line(cause)}; what ran before stays")
            self._retire()
            return
        if isinstance(ended, Cores):
            self._restart(loop, ended)
            return
        self.tuned, stages, remark = ended
        self._give(loop, stages, self.tuned.chosen.candidate.variant)
        self._on_tuned(self.tuned, remark)
        self._retire()

    def _retire(self) -> None:
        """End tuning: give back, beside the loop, what it does not run."""
        self._phase = _Phase.DONE
        self._discarded.append(self._home)
        self._home = None
        self._beside(lambda: None)

    def _beside(self, work: Callable[[], Value]) -> BackgroundTask[Value]:
        """Run something beside the loop, after what is given back: a session's memory takes milliseconds."""
        discarded = self._discarded

        def clear_and_work() -> Value:
            discarded.clear()
            return work()

        return BackgroundTask(clear_and_work, "tuning")

    def _give(self, loop: Loop, stages: _Stages, variant: str) -> None:
        loop.stages = stages
        self._on_variant(variant)

    @property
    def _at_home(self) -> tuple[Candidate, _Stages]:
        if self._home is None:
            raise ValueError("expected stages until the end")
        return self._home


_End: TypeAlias = tuple[Tuned, _Stages, str]


def _line(cause: Exception) -> str:
    return str(cause) if isinstance(cause, EdgeError) else typed_line(cause)
