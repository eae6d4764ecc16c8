"""The loop on a hand-moved clock: the freshest frame, the drop rule, the order of things."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from edge_sdk.budget import Budget
from edge_sdk.frame import Classification, Frame, Result
from edge_sdk.loop import Loop, Tick
from edge_sdk.protocols import Sink
from tests.device.simulated import MS, Camera, Clock, Collector


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


def test_frames_that_come_old_all_run_and_are_late() -> None:
    clock, sink = Clock(), Collector()
    camera = Camera(clock, period_ms=200, count=50, delay_ms=200)
    loop = _loop(camera, clock, work_ms=10, budget_ms=150, sink=sink)
    while not camera.ended:
        loop.step()
    assert (loop.counts[Tick.LATE], loop.counts[Tick.STALE]) == (50, 0)
    assert (loop.last_age_ns, loop.last_delay_ns) == (210 * MS, 200 * MS)


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


def _steps(loop: Loop, camera: Camera) -> list[Tick]:
    ticks = []
    while not camera.ended:
        ticks.append(loop.step())
    return ticks


def test_every_third_frame_by_number_and_none_of_the_others_is_a_miss() -> None:
    clock, sink = Clock(), Collector()
    camera = Camera(clock, period_ms=10, count=300)
    loop = _loop(camera, clock, work_ms=1, budget_ms=100, sink=sink)
    loop.every = 3
    ticks = _steps(loop, camera)
    assert [r.frame.seq for r in sink.results] == list(range(0, 300, 3))
    assert (ticks.count(Tick.SKIPPED), ticks.count(Tick.ON_TIME)) == (200, 100)
    assert loop.counts[Tick.LATE] == loop.counts[Tick.STALE] == 0


def test_frames_that_were_overtaken_count_among_those_left_out() -> None:
    clock, sink = Clock(), Collector()
    camera = Camera(clock, period_ms=10, count=300)
    loop = _loop(camera, clock, work_ms=25, budget_ms=100, sink=sink)
    loop.every = 4
    _steps(loop, camera)
    assert [r.frame.seq for r in sink.results] == list(range(0, 300, 4))
    assert loop.last_age_ns == loop.last_serial_ns == 25 * MS  # each is taken fresh


def test_two_of_three_frames() -> None:
    clock, sink = Clock(), Collector()
    camera = Camera(clock, period_ms=10, count=12)
    loop = _loop(camera, clock, work_ms=1, budget_ms=100, sink=sink)
    loop.every = 1.5
    _steps(loop, camera)
    assert [r.frame.seq for r in sink.results] == [0, 2, 3, 5, 6, 8, 9, 11]


@pytest.mark.parametrize(
    ("period_ms", "most_fps", "expected"), [(50, 4, 40), (33, 10, 100), (100, 25, 100), (50, 0, 200)]
)
def test_no_more_frames_run_than_are_wanted_a_second(period_ms: int, most_fps: int, expected: int) -> None:
    clock, sink = Clock(), Collector()
    camera = Camera(clock, period_ms=period_ms, count=10_000 // period_ms)
    loop = _loop(camera, clock, work_ms=1, budget_ms=100, sink=sink)
    loop.least_gap_ns = 1_000_000_000 // most_fps if most_fps else 0
    _steps(loop, camera)
    assert abs(len(sink.results) - expected) <= 1  # of ten seconds, also where the periods do not go into each other
    assert loop.counts[Tick.SKIPPED] == 10_000 // period_ms - len(sink.results)


def test_a_faster_rate_holds_at_once_after_a_very_slow_one() -> None:
    clock, sink = Clock(), Collector()
    camera = Camera(clock, period_ms=50, count=200)
    loop = _loop(camera, clock, work_ms=1, budget_ms=100, sink=sink)
    loop.least_gap_ns = 3600 * 10**9
    for _ in range(10):
        loop.step()
    assert len(sink.results) == 1
    loop.least_gap_ns = 100 * MS
    for _ in range(10):
        loop.step()
    assert len(sink.results) == 6


def test_numbers_that_begin_again_do_not_stop_the_stream() -> None:
    clock, sink = Clock(), Collector()
    first, second = Camera(clock, 10, 50), Camera(clock, 10, 5)
    loop = _loop(first, clock, work_ms=1, budget_ms=10_000, sink=sink)
    loop.every = 2
    _steps(loop, first)
    loop._source = second
    assert loop.step() is Tick.ON_TIME


def test_other_stages_are_not_expected_to_take_what_those_before_them_took() -> None:
    clock, sink = Clock(), Collector()
    camera = Camera(clock, period_ms=50, count=1000)
    loop = _loop(camera, clock, work_ms=150, budget_ms=100, sink=sink)
    for _ in range(100):
        loop.step()
    assert loop.counts[Tick.STALE] > 50
    before = loop.counts[Tick.STALE]
    loop.stages = _loop(camera, clock, work_ms=5, budget_ms=100, sink=sink).stages
    _steps(loop, camera)
    assert loop.counts[Tick.STALE] == before


def test_a_machine_that_was_suspended_goes_on_with_the_freshest_frame() -> None:
    clock, sink = Clock(), Collector()
    camera = Camera(clock, period_ms=50, count=200_000)
    loop = _loop(camera, clock, work_ms=5, budget_ms=100, sink=sink)
    for _ in range(100):
        loop.step()
    clock.advance(3_600_000)
    ticks = [loop.step() for _ in range(100)]
    assert set(ticks) == {Tick.ON_TIME}


def test_a_suspension_in_the_middle_of_a_run_costs_that_result_alone() -> None:
    clock, sink = Clock(), Collector()
    camera = Camera(clock, period_ms=50, count=200_000)
    loop = _loop(camera, clock, work_ms=[5.0, 5.0, 3_600_000.0, *[5.0] * 300], budget_ms=100, sink=sink)
    ticks = [loop.step() for _ in range(300)]
    assert ticks.count(Tick.LATE) == 1
    # One of three took an hour; the next frame is the probe that ends the spell.
    assert set(ticks[3:]) == {Tick.ON_TIME}


def test_jumps_of_the_wall_clock_change_nothing() -> None:
    def run(wall: Sequence[float]) -> list[Tick]:
        clock, sink = Clock(), Collector()
        camera = Camera(clock, period_ms=10, count=500)
        times = itertools.cycle(wall)
        deliver = camera.latest

        def latest(timeout_s: float) -> Frame | None:
            frame = deliver(timeout_s)
            return frame and Frame(frame.image, frame.captured_ns, next(times), frame.seq, frame.camera)

        camera.latest = latest  # type: ignore[method-assign]
        return _steps(_loop(camera, clock, work_ms=33, budget_ms=40, sink=sink), camera)

    assert run([0.0]) == run([1.7e9, 0.0, 4e9, -5.0])
