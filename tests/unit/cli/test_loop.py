"""The loop and its budget on a hand-moved clock: the freshest frame, the drop rule, the order of things."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge_sdk.core.clock import percentiles_of
from edge_sdk.core.frame import Classification, Frame, Result
from edge_sdk.core.protocols import Sink, Stage
from edge_sdk.loop import Budget, Loop, Tick
from tests.support.loops import MS, Camera, Clock, Collector


class Scene:
    """A loop over a camera of a constant rate, whose stages take as long as a test says, each time or in turn."""

    def __init__(
        self, period_ms: int, count: int, work_ms: float | Sequence[float], budget_ms: float = 100, delay_ms: float = 0,
        observers: Sequence[Sink] = (),
    ) -> None:  # fmt: skip
        self.clock, self.sink = Clock(), Collector()
        self.camera = Camera(self.clock, period_ms, count, delay_ms)
        stages, budget = self.stages(work_ms), Budget(budget_ms)
        self.loop = Loop(self.camera, stages, self.sink, budget, clock_ns=self.clock, observers=observers)

    def stages(self, work_ms: float | Sequence[float]) -> Stage[Frame, Result]:
        durations = iter(work_ms) if isinstance(work_ms, Sequence) else itertools.repeat(work_ms)

        def run(frame: Frame) -> Result:
            self.clock.advance(next(durations))
            return Classification(frame, 0, np.empty(0, np.float32), np.empty(0, np.int64))

        return run

    def run(self) -> list[Tick]:
        ticks = []
        while not self.camera.ended:
            ticks.append(self.loop.step())
        return ticks

    @property
    def seqs(self) -> list[int]:
        return [result.frame.seq for result in self.sink.results]


def test_a_slow_model_on_a_fast_camera_takes_the_freshest_frame_and_its_age_stays_flat() -> None:
    scene, ages = Scene(period_ms=10, count=10_000, work_ms=33), []
    while not scene.camera.ended:
        if scene.loop.step() in (Tick.ON_TIME, Tick.LATE):
            ages.append(scene.loop.last_age_ns / MS)
    assert scene.loop.counts[Tick.ON_TIME] == len(scene.seqs) > 2900
    assert scene.loop.counts[Tick.LATE] == scene.loop.counts[Tick.STALE] == 0
    # At most one camera period old when taken, and then the work.
    assert max(ages) <= 10 + 33
    assert max(ages[-100:]) <= max(ages[:100])
    assert scene.seqs == sorted(set(scene.seqs))


def test_hopeless_frames_are_dropped_but_for_one_probe_a_second_that_is_late() -> None:
    scene = Scene(period_ms=50, count=200, work_ms=150)
    scene.run()
    counts = scene.loop.counts
    assert (counts[Tick.ON_TIME], counts[Tick.LATE]) == (0, len(scene.seqs))
    assert 9 <= len(scene.seqs) <= 11  # ten seconds of frames, one probe each
    assert counts[Tick.STALE] > 150


def test_frames_that_come_old_all_run_and_are_late() -> None:
    scene = Scene(period_ms=200, count=50, work_ms=10, budget_ms=150, delay_ms=200)
    scene.run()
    assert (scene.loop.counts[Tick.LATE], scene.loop.counts[Tick.STALE]) == (50, 0)
    assert (scene.loop.last_age_ns, scene.loop.last_delay_ns) == (210 * MS, 200 * MS)


def test_a_step_without_a_frame_is_idle() -> None:
    scene = Scene(period_ms=10_000, count=2, work_ms=1)
    assert [scene.loop.step(timeout_s=0.5) for _ in range(2)] == [Tick.ON_TIME, Tick.IDLE]
    assert scene.loop.counts[Tick.IDLE] == 1


def test_a_slow_observer_does_not_make_a_result_late() -> None:
    slow: Any = SimpleNamespace(put=lambda _result: scene.clock.advance(500))
    scene: Scene
    scene = Scene(period_ms=1000, count=1, work_ms=20, observers=[slow])
    assert (scene.loop.step(), scene.loop.last_age_ns) == (Tick.ON_TIME, 20 * MS)


def test_every_so_many_frames_run_and_no_other_is_a_miss() -> None:
    for every, work_ms, expected in (
        (4, 25, list(range(0, 300, 4))),  # frames that were overtaken count among those left out
        (1.5, 1, [seq for seq in range(300) if seq % 3 != 1]),
    ):
        scene = Scene(period_ms=10, count=300, work_ms=work_ms)
        scene.loop.every = every
        ticks = scene.run()
        assert (scene.seqs, {*ticks}) == (expected, {Tick.SKIPPED, Tick.ON_TIME})
        assert scene.loop.last_age_ns == scene.loop.last_serial_ns == work_ms * MS  # each is taken fresh


def test_no_more_frames_run_than_are_wanted_a_second() -> None:
    for period_ms, most_fps, expected in ((33, 10, 100), (100, 25, 100), (50, 0, 200)):
        scene = Scene(period_ms, 10_000 // period_ms, work_ms=1)
        scene.loop.least_gap_ns = 1_000_000_000 // most_fps if most_fps else 0
        scene.run()
        assert abs(len(scene.seqs) - expected) <= 1  # of ten seconds, also where the periods do not go into each other
        assert scene.loop.counts[Tick.SKIPPED] == 10_000 // period_ms - len(scene.seqs)


def test_a_faster_rate_holds_at_once_after_a_very_slow_one() -> None:
    scene = Scene(period_ms=50, count=200, work_ms=1)
    for gap_ns, expected in ((3600 * 10**9, 1), (100 * MS, 6)):
        scene.loop.least_gap_ns = gap_ns
        for _ in range(10):
            scene.loop.step()
        assert len(scene.seqs) == expected


def test_other_stages_are_not_expected_to_take_as_long_as_those_before_them() -> None:
    scene = Scene(period_ms=50, count=1000, work_ms=150)
    for _ in range(100):
        scene.loop.step()
    before = scene.loop.counts[Tick.STALE]
    assert before > 50
    scene.loop.stages = scene.stages(5)
    scene.run()
    assert scene.loop.counts[Tick.STALE] == before


def test_a_machine_that_was_suspended_goes_on_with_the_freshest_frame_and_loses_one_result_at_most() -> None:
    scene = Scene(period_ms=50, count=200_000, work_ms=[*[5.0] * 150, 3_600_000.0, *[5.0] * 300])
    for _ in range(100):
        scene.loop.step()
    scene.clock.advance(3_600_000)
    assert {scene.loop.step() for _ in range(50)} == {Tick.ON_TIME}
    ticks = [scene.loop.step() for _ in range(300)]  # the first takes an hour; the next, a probe, ends the spell
    assert (ticks.count(Tick.LATE), {*ticks[1:]}) == (1, {Tick.ON_TIME})


# The drop rule alone.


def _slow(latency_ms: float = 100, work_ms: int = 150) -> Budget:
    budget = Budget(latency_ms)
    for _ in range(64):
        budget.record(work_ms * MS)
    return budget


def test_the_expected_duration_counts_against_the_budget() -> None:
    fresh, busy = Budget(100), _slow(work_ms=40)
    for budget, most_ms in ((fresh, 100), (busy, 60)):
        assert budget.admits(captured_ns=0, now_ns=most_ms * MS)
        assert not budget.admits(captured_ns=0, now_ns=(most_ms + 1) * MS)
        assert not budget.is_late(0, 100 * MS)
        assert budget.is_late(0, 100 * MS + 1)


def test_the_expected_duration_is_the_90th_percentile_of_the_last_64() -> None:
    budget = Budget(100)
    for duration in range(1, 1001):
        budget.record(duration)
    assert budget.expected_ns() == range(1000 - 63, 1001)[64 * 9 // 10]
    budget.forget()
    assert budget.expected_ns() == 0
    for duration in range(100):
        budget.record(duration)
    assert budget.expected_ns() == 36 + 64 * 9 // 10


def test_images_in_turn_are_never_dropped_and_a_frame_from_the_future_has_no_time_to_spare() -> None:
    budget = Budget(10, drops=False)
    budget.record(500 * MS)
    assert all(budget.admits(captured_ns=0, now_ns=t * MS) for t in range(0, 1000, 100))
    budget, future_ns = _slow(), 5000 * MS
    assert budget.admits(future_ns, now_ns=0)  # the probe
    assert not budget.admits(future_ns, now_ns=10 * MS)
    assert not budget.is_late(future_ns, now_ns=10 * MS)


def test_one_probe_that_makes_it_ends_a_slow_spell_unless_a_younger_frame_alone_would_have() -> None:
    budget = _slow()
    assert budget.admits(0, 0)  # the first probe
    budget.record(150 * MS)
    assert not budget.admits(0, 500 * MS)
    assert budget.admits(1000 * MS, 1000 * MS)
    budget.record(20 * MS)
    assert budget.expected_ns() == 20 * MS
    assert budget.admits(1050 * MS, 1100 * MS)
    budget = _slow()
    budget.admits(0, 90 * MS)
    budget.record(20 * MS)
    assert budget.expected_ns() == 150 * MS


def test_percentiles_of_durations_are_those_of_numpy_to_the_microsecond() -> None:
    for count in (1, 2, 3, 4096):
        durations_ns = np.random.default_rng(count).integers(0, 10**9, count)
        found = percentiles_of(durations_ns)
        assert found is not None
        expected = np.percentile(durations_ns, [50, 95, 99]) / 1e6
        assert (found.p50_ms, found.p95_ms, found.p99_ms) == pytest.approx(expected, abs=0.00051)
    assert percentiles_of(np.empty(0, np.int64)) is None
