"""Loops on a clock that is moved by hand: plain, under a governor, with stages that take as long as a test says."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import EdgeError, OutputError
from edge_sdk.core.frame import Frame, Result
from edge_sdk.core.machine import CpuTime
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Stages
from edge_sdk.loop import Budget, Loop, Tick
from edge_sdk.messages.schema import Running
from edge_sdk.service.model_selector import LevelChanger
from edge_sdk.tuning.candidates import Candidate, Limits, Plan, Tuned
from edge_sdk.tuning.degradation import DegradationController
from edge_sdk.tuning.live import LiveTuner
from tests.support.broker import WAIT_S
from tests.support.bundles import LARGE, SMALL, open_variant, write_variants
from tests.support.logs import SAID
from tests.support.results import CPU, cores

# A hand-moved clock, a camera on it, and a sink: a loop without any real time.

MS = 1_000_000
_PICTURE = np.zeros((4, 4, 3), np.uint8)


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ms: float) -> None:
        self.now_ns += int(ms * MS)


class Camera:
    """A camera of constant rate whose slot holds the newest frame only; waiting moves the clock."""

    def __init__(self, clock: Clock, period_ms: float, count: int, delay_ms: float = 0) -> None:
        self._clock, self._period_ns, self._count = clock, int(period_ms * MS), count
        self._delay_ns = int(delay_ms * MS)
        self._next = 0

    @property
    def ended(self) -> bool:
        return self._next >= self._count

    def latest(self, timeout_s: float) -> Frame | None:
        newest = min(self._clock.now_ns // self._period_ns, self._count - 1)
        if newest < self._next:
            wait_ns = self._next * self._period_ns - self._clock.now_ns
            if self.ended or wait_ns > timeout_s * 1e9:
                self._clock.now_ns += int(timeout_s * 1e9)
                return None
            self._clock.now_ns += wait_ns
            newest = self._next
        self._next = newest + 1
        return Frame(_PICTURE, newest * self._period_ns - self._delay_ns, 0.0, newest, "camera", self._delay_ns)

    def close(self) -> None:
        pass


class Collector:
    def __init__(self) -> None:
        self.results: list[Result] = []

    def put(self, result: Result) -> None:
        self.results.append(result)


# A loop under a governor: real models are loaded beside it, and its clock is moved by hand.


class Scene:
    """A loop under a governor. Delivering a result takes what `costs_ms` says of the variant that made it."""

    def __init__(
        self, folder: Path, *, fixed: bool = False, open_stages: Callable[[str], Stages] | None = None,
        load_s: float = WAIT_S, then_ms: float = 0.0,
    ) -> None:  # fmt: skip
        self.folder, self.clock, self.then_ms = folder, Clock(), then_ms
        self.costs_ms = {LARGE: 150.0, SMALL: 5.0}
        self.heat = ""
        self.said = SAID
        self.announced: list[Running] = []
        self.opened: list[weakref.ref[Stages]] = []
        self.most_alive = 0
        self.is_held = False
        self.camera, self.camera_delay_ms = Camera(self.clock, 100, 10**9), 0.0
        self.loop = Loop(self, self.open_here(LARGE), self, Budget(100), then=self.look_again, clock_ns=self.clock)
        self._open_stages = open_stages
        self.governing = LevelChanger(
            Bundle.open(folder).manifest, self.open, limit_ns=100 * MS, fps=10, fixed=fixed,
            announce=self.announced.append, throttled=lambda: self.heat, is_tuning=lambda: self.is_held,
            controller=DegradationController(), load_s=load_s, clock_ns=self.clock,
        )  # fmt: skip
        self.governing.begin(LARGE, "start")

    def look_again(self, result: Result, _deadline_ns: float) -> Result:
        self.clock.advance(self.then_ms)
        return result

    def open(self, variant: str) -> Stages:
        if self._open_stages is not None:
            return self._open_stages(variant)
        return self.open_here(variant)

    def open_here(self, variant: str) -> Stages:
        stages = open_variant(self.folder, variant)
        self.opened.append(weakref.ref(stages))
        self.most_alive = max(self.most_alive, self.alive)
        return stages

    @property
    def alive(self) -> int:
        gc.collect()
        return sum(ref() is not None for ref in self.opened)

    @property
    def variant(self) -> str:
        assert isinstance(self.loop.stages, Stages)
        return self.loop.stages.variant

    ended = False

    def latest(self, timeout_s: float) -> Frame | None:
        frame = self.camera.latest(timeout_s)
        if frame is None or not self.camera_delay_ms:
            return frame
        captured_ns = frame.captured_ns - int(self.camera_delay_ms * MS)
        return Frame(frame.image, captured_ns, frame.captured_at, frame.seq, frame.camera)

    def close(self) -> None:
        pass

    def put(self, result: Result) -> None:
        self.clock.advance(self.costs_ms[self.variant])

    def step(self) -> Tick:
        tick = self.loop.step()
        self.governing.after(self.loop, tick)
        return tick

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            self.step()

    def run(self, seconds: float) -> None:
        end_ns = self.clock.now_ns + int(seconds * 1e9)
        while self.clock.now_ns < end_ns:
            self.step()


# A loop on a hand-moved clock, whose stages are real sessions that take as long as a test says.

Work = Callable[[Candidate, int], float]
"""Milliseconds that a candidate takes for its n-th frame, from 0."""


class Slowed:
    def __init__(self, stages: Stages, candidate: Candidate, work: Work, board: Board) -> None:
        self.stages, self.candidate, self._work, self._board = stages, candidate, work, board
        self._count = 0

    def __call__(self, frame: Frame, /) -> Result:
        ms = self._work(self.candidate, self._count)
        self._count += 1
        self._board.clock.advance(ms)
        self._board.cpu_ns += int(ms * 1e6)
        self._board.ran.append(self.candidate.variant)
        return self.stages(frame)


class Board:
    """A bundle of three variants, a camera, a loop and a tuner."""

    def __init__(
        self, folder: Path, work: Work, *, budget_ms: float = 50, fps: float = 30, seconds: float | None = 20,
        frames: int = 10_000, refused: Sequence[str] = (), disk_is_full: bool = False, others: float = 0.0,
        hangs: threading.Event | None = None,
    ) -> None:  # fmt: skip
        self.clock, self.cpu_ns, self.sink = Clock(), 0, Collector()
        self.variants, self.ran = list[tuple[int, str]](), list[str]()
        self.lines, self.outcome, self.remembered = SAID, list[tuple[Tuned, str]](), list[Tuned]()
        self._work, self._refused, self._disk_is_full = work, refused, disk_is_full
        self._alive: weakref.WeakSet[Slowed] = weakref.WeakSet()
        self._hangs = hangs  # until it is set, no candidate but the first is loaded
        self.most_alive = 0
        folder.parent.mkdir(exist_ok=True)
        self.bundle = Bundle.open(write_variants(folder))
        self.camera = Camera(self.clock, 1000 / fps, frames)
        promise = Candidate.promised(self.bundle.manifest)
        home = self.open(promise)
        plan = Plan.of(
            self.bundle, Limits(budget_ms), only_first=False, providers=CPU, fps=fps, seconds=seconds, cores=cores(2)
        )

        def read_cpu_time() -> CpuTime:
            return CpuTime(2e-9 * self.clock(), 2e-9 * self.clock() * others + self.cpu_ns / 1e9, self.cpu_ns / 1e9)

        self.tuner = LiveTuner(
            plan, (promise, home), self.open, remember=self._remember, clock_ns=self.clock, cpu_ns=lambda: self.cpu_ns,
            on_tuned=lambda tuned, remark: self.outcome.append((tuned, remark)), read_cpu_time=read_cpu_time,
            on_variant=lambda variant: self.variants.append((len(self.sink.results), variant)),
            load_s=WAIT_S if hangs is None else 0.1,
        )  # fmt: skip
        self.loop = Loop(self.camera, home, self.sink, Budget(budget_ms), clock_ns=self.clock)

    def open(self, candidate: Candidate) -> Slowed:
        if str(candidate) in self._refused:
            raise EdgeError("no such luck")
        if self._alive and self._hangs is not None:
            self._hangs.wait()
        stages = Stages.open(self.bundle.with_primary(candidate.variant), candidate.settings(SessionSettings()))
        slowed = Slowed(stages, candidate, self._work, self)
        self._alive.add(slowed)
        self.most_alive = max(self.most_alive, len(self._alive))
        return slowed

    def run(self) -> None:
        """Step until tuning is done; the clock stands while something loads."""
        while not self.tuner.done and not self.camera.ended:
            self.tuner.after(self.loop, self.loop.step())
            while self.tuner.is_loading:
                time.sleep(0.0005)

    def run_to_its_end(self) -> Tuned:
        self.run()
        [(tuned, _remark)] = self.outcome
        return tuned

    def named(self) -> list[str]:
        """The variant that each result was said to be of."""
        named = ["int8"] * len(self.sink.results)
        for first, variant in self.variants:
            named[first:] = [variant] * (len(named) - first)
        return named

    def alive(self) -> list[Candidate]:
        """The candidates that are loaded, once those that were given back are gone."""
        for thread in threading.enumerate():
            if thread.name == "tuning":
                thread.join()
        return [slowed.candidate for slowed in self._alive]

    def runs(self) -> Candidate:
        assert isinstance(self.loop.stages, Slowed)
        return self.loop.stages.candidate

    def _remember(self, tuned: Tuned) -> None:
        if self._disk_is_full:
            raise OutputError("no room")
        self.remembered.append(tuned)
