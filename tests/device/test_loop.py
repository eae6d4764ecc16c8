"""The loop on a hand-moved clock: the freshest frame, the drop rule, the order of things."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from edge_sdk.budget import Budget
from edge_sdk.frame import Classification, Frame, Result
from edge_sdk.loop import Loop, Tick
from edge_sdk.protocols import Sink

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ms: float) -> None:
        self.now_ns += int(ms * MS)


class Camera:
    """A camera of constant rate whose slot holds the newest frame only; waiting moves the clock."""

    def __init__(self, clock: Clock, period_ms: float, count: int) -> None:
        self._clock, self._period_ns, self._count = clock, int(period_ms * MS), count
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
        return Frame(np.zeros((4, 4, 3), np.uint8), newest * self._period_ns, 0.0, newest, "camera")

    def close(self) -> None:
        pass


class Collector:
    def __init__(self) -> None:
        self.results: list[Result] = []

    def put(self, result: Result) -> None:
        self.results.append(result)


def _loop(
    camera: Camera,
    clock: Clock,
    work_ms: float | Sequence[float],
    budget_ms: float,
    sink: Collector,
    observers: Sequence[Sink] = (),
) -> Loop:
    durations = iter(work_ms) if isinstance(work_ms, Sequence) else itertools.repeat(work_ms)

    def stages(frame: Frame) -> Result:
        clock.advance(next(durations))
        return Classification(frame, 0, np.empty(0, np.float32), np.empty(0, np.int64))

    return Loop(camera, stages, sink, Budget(budget_ms), clock_ns=clock, observers=observers)


def test_a_slow_model_on_a_fast_camera_takes_the_freshest_frame_and_its_age_stays_flat() -> None:
    clock, sink = Clock(), Collector()
    camera = Camera(clock, period_ms=10, count=10_000)
    loop = _loop(camera, clock, work_ms=33, budget_ms=100, sink=sink)
    ages = []
    while not camera.ended:
        if loop.step() in (Tick.ON_TIME, Tick.LATE):
            ages.append(loop.last_age_ns / MS)
    assert loop.counts[Tick.ON_TIME] == len(sink.results) > 2900
    assert loop.counts[Tick.LATE] == loop.counts[Tick.STALE] == 0
    # At most one camera period old when taken, and then the work.
    assert max(ages) <= 10 + 33
    assert max(ages[-100:]) <= max(ages[:100])
    sequence = [r.frame.seq for r in sink.results]
    assert sequence == sorted(set(sequence))


def test_results_beyond_the_budget_are_late_and_hopeless_frames_are_dropped_but_for_one_probe_a_second() -> None:
    clock, sink = Clock(), Collector()
    camera = Camera(clock, period_ms=50, count=200)
    loop = _loop(camera, clock, work_ms=150, budget_ms=100, sink=sink)
    while not camera.ended:
        loop.step()
    assert loop.counts[Tick.LATE] == len(sink.results)
    assert 9 <= len(sink.results) <= 11  # ten seconds of frames, one probe each
    assert loop.counts[Tick.STALE] > 150
    assert loop.counts[Tick.ON_TIME] == 0


def test_when_the_slow_spell_ends_every_frame_runs_again() -> None:
    clock, sink = Clock(), Collector()
    camera = Camera(clock, period_ms=50, count=3000)
    slow = [150.0] * 10
    loop = _loop(camera, clock, work_ms=[*slow, *([5.0] * 3000)], budget_ms=100, sink=sink)
    while not camera.ended:
        loop.step()
    last = [r.frame.seq for r in sink.results][-100:]
    assert last == list(range(2900, 3000))


def test_no_frame_is_idle() -> None:
    clock = Clock()
    camera = Camera(clock, period_ms=10_000, count=2)
    loop = _loop(camera, clock, work_ms=1, budget_ms=100, sink=Collector())
    assert loop.step() is Tick.ON_TIME
    assert loop.step(timeout_s=0.5) is Tick.IDLE
    assert loop.counts[Tick.IDLE] == 1


def test_a_slow_observer_does_not_make_a_result_late() -> None:
    clock, sink = Clock(), Collector()

    class Slow:
        def put(self, result: Result) -> None:
            clock.advance(500)

    camera = Camera(clock, period_ms=1000, count=1)
    loop = _loop(camera, clock, work_ms=20, budget_ms=100, sink=sink, observers=[Slow()])
    assert loop.step() is Tick.ON_TIME
    assert loop.last_age_ns == 20 * MS
