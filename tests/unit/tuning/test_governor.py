"""The governor on a hand-moved clock: a loop whose work depends on the level and on a load that comes and goes.

Behind it the streams that share a machine: which of them steps down, which steps up, and how fair that is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Agreement, BoardEstimate, Quality, Variant
from edge_sdk.core.errors import NoRoomError
from edge_sdk.core.frame import Classification, Frame, Result
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Stages
from edge_sdk.loop import Budget, Loop, Tick
from edge_sdk.service.model_selector import ModelSelector
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.tuning.degradation import (
    DegradationController,
    Governor,
    Level,
    Move,
    check_free_memory,
    levels_of,
    with_steps,
)
from tests.support.bundles import LARGE, SMALL, make_manifest, make_variant, open_variant, write_graded, write_variants
from tests.support.configs import write_files
from tests.support.loops import MS, Camera, Clock, Collector, Scene

S = 1_000_000_000
LADDER = (Level("large", 1, 40.0), Level("small", 1, 15.0), Level("small", 2, 15.0), Level("small", 3, 15.0))
"""Milliseconds on a machine that does nothing else."""

Load = Callable[[float], float]
"""Seconds -> how many times as long everything takes."""


class Step(NamedTuple):
    at_s: float
    level: int
    reason: str


class World:
    """A loop with a governor, simulated for some seconds; loading another variant takes half a second.

    With `large_ms` the large model takes something else than its cost says.
    """

    def __init__(
        self, load: Load = lambda _s: 1.0, *, heat: Callable[[float], str] = lambda _s: "", budget_ms: float = 100,
        period_ms: float = 100, short: Callable[[float], str] = lambda _s: "", load_s: float = 0.5,
        large_ms: Callable[[World], float] | None = None,
    ) -> None:  # fmt: skip
        self.clock, self.load, self.heat, self.large_ms = Clock(), load, heat, large_ms
        self.short, self.load_s = short, load_s
        self.governor = Governor(LADDER, int(budget_ms * MS), int(period_ms * MS), 0)
        camera = Camera(self.clock, period_ms, 10**9)
        self.loop = Loop(camera, self.work, Collector(), Budget(budget_ms), clock_ns=self.clock)
        self.steps, self.postponed_s = list[Step](), list[float]()
        self.ticks = list[Tick]()
        self._move: Move | None = None
        self._ready_ns = 0

    def work(self, frame: Frame) -> Result:
        level = self.governor.level
        is_odd = self.large_ms is not None and level.variant == "large"
        took_ms = (self.large_ms(self) if is_odd else level.cost) * self.load(self.now_s)
        self.clock.advance(took_ms)
        return Classification(frame, int(took_ms * MS), np.empty(0, np.float32), np.empty(0, np.int64))

    def run(self, seconds: float) -> World:
        loop, governor = self.loop, self.governor
        while self.clock.now_ns < seconds * S:
            tick = loop.step()
            self.ticks.append(tick)
            if tick in (Tick.ON_TIME, Tick.LATE):
                governor.note_result(is_late=tick is Tick.LATE, age_ns=loop.last_age_ns, run_ns=loop.last_run_ns)
            elif tick is Tick.STALE:
                governor.note_stale()
            if self._move is not None and self.clock.now_ns >= self._ready_ns:
                self._finish(self._move)
            move = governor.decide(self.clock.now_ns, self.heat(self.now_s))
            if move is not None and move.level.variant == governor.level.variant:
                self._finish(move)
            elif move is not None:
                self._move, self._ready_ns = move, self.clock.now_ns + int(self.load_s * S)
        return self

    def _finish(self, move: Move) -> None:
        self._move = None
        if move.level.variant in self.short(self.now_s).split():
            self.postponed_s.append(self.now_s)
            self.governor.leave_out(self.clock.now_ns, for_now=True)
        else:
            self.governor.arrive(self.clock.now_ns)
            self.loop.every, self.loop.stages = self.governor.level.every, self.work
            self.steps.append(Step(self.now_s, self.governor.index, move.reason))

    @property
    def now_s(self) -> float:
        return self.clock.now_ns / S

    @property
    def path(self) -> list[int]:
        return [step.level for step in self.steps]

    @property
    def ups_s(self) -> list[float]:
        return [step.at_s for step in self.steps if step.level == 0]


def between(start_s: float, end_s: float, factor: float) -> Load:
    return lambda s: factor if start_s <= s < end_s else 1.0


def test_nothing_moves_while_the_budget_is_kept() -> None:
    world = World(lambda s: 2.4 if int(s * 10) % 50 == 0 else 1.0).run(600)  # 96 ms now and then: near, and not over
    assert world.steps == []


def test_a_load_makes_it_step_down_once_and_up_again_when_it_is_over() -> None:
    world = World(between(30, 60, 4.0)).run(120)
    assert world.path == [1, 0]
    down, up = world.steps
    assert 32 <= down.at_s <= 36
    assert re.search(r"% of .* missed 100 ms$", down.reason)
    assert 60 <= up.at_s <= 75  # quiet since the step down; the room appears when the load goes
    assert re.search(r"^quiet for .*ms expected of 100", up.reason)


def test_it_goes_down_one_rung_at_a_time_stays_at_the_end_of_the_ladder_and_comes_all_the_way_back() -> None:
    world = World(between(10, 100, 60.0)).run(220)
    assert world.path == [1, 2, 3, 2, 1, 0]
    times = [step.at_s for step in world.steps]
    assert all(b - a >= 2 for a, b in pairwise(times[:3])), "faster than it can see"
    assert all(b - a >= 10 for a, b in pairwise(times[3:]))
    assert set(world.ticks[-100:]) == {Tick.ON_TIME}


def test_there_is_no_step_up_into_what_would_not_fit() -> None:
    world = World(lambda s: 3.0 if s >= 10 else 1.0).run(600)  # large 120 ms, small 45, and the budget 100: for good
    assert world.path == [1]


def test_what_is_no_run_does_not_grow_with_the_model() -> None:
    governor = Governor(LADDER, 100 * MS, 100 * MS, 0, 1)
    moves = []
    for number in range(40):  # a move that is under way is not decided again
        governor.note_result(is_late=False, age_ns=50 * MS, run_ns=3 * MS)
        moves.append(governor.decide((number + 1) * S))
    [move] = filter(None, moves)
    assert move.reason.endswith(", 55 ms expected of 100")  # 47 and 3 * 40 / 15


def test_a_camera_faster_than_the_larger_model_makes_a_frame_wait_and_that_counts() -> None:
    # 40 ms of work on frames 33 ms apart: as old as 73. The budget is 80, of which a step up may take 64.
    world = World(between(5, 15, 3.0), budget_ms=80, period_ms=33).run(200)
    assert world.path == [1]


@pytest.mark.parametrize(("period_s", "most"), [(3, 30), (13, 30), (40, 30), (180, 41)])
def test_a_load_that_comes_and_goes_does_not_make_it_flap(period_s: float, most: int) -> None:
    """A naive governor steps twice a period: this one far less often, where stepping up fails again and again."""
    world = World(lambda s: 4.0 if s % period_s >= period_s / 2 else 1.0).run(3600)
    assert 1 <= len(world.steps) <= most


def test_a_hot_board_is_relieved_by_one_rung_and_no_more_while_the_budget_is_kept() -> None:
    world = World(heat=lambda s: "the firmware throttles" if 5 <= s < 9 or 20 <= s < 200 else "").run(300)
    assert world.path == [1, 0]
    down, up = world.steps
    assert 25 <= down.at_s <= 30
    assert down.reason == "the board throttles: the firmware throttles"
    assert up.at_s >= 208


def test_a_camera_of_one_frame_in_three_seconds_is_judged_by_eight_of_them() -> None:
    world = World(between(60, 200, 4.0), period_ms=3000).run(200)
    assert world.path == [1]
    assert world.steps[0].at_s <= 60 + 8 * 3
    assert "of 8 frames" in world.steps[0].reason


def test_one_late_frame_of_a_slow_camera_is_chance() -> None:
    governor = Governor(LADDER, 100 * MS, 1000 * MS, 0)
    for number in range(40):
        governor.note_result(is_late=number % 8 == 0, age_ns=50 * MS, run_ns=40 * MS)
        assert governor.decide((number + 1) * S) is None


def test_after_a_time_without_frames_nothing_is_held_against_anybody() -> None:
    governor = Governor(LADDER, 100 * MS, 100 * MS, 0)
    for _ in range(3):
        governor.note_stale()
    governor.rest(3600 * S)
    for _ in range(8):
        governor.note_result(is_late=False, age_ns=50 * MS, run_ns=40 * MS)
    assert governor.decide(3603 * S) is None


# Models that take something else than the bundle says of them.


def test_steps_up_that_fail_become_rarer() -> None:
    # Fast enough for some seconds: what makes it slow then is the large model itself, and no figure said so.
    def large_ms(world: World) -> float:
        began_s = world.steps[-1].at_s if world.steps else 0.0
        return 150.0 if world.now_s - began_s > 6 else 40.0

    ups = World(large_ms=large_ms).run(2 * 3600).ups_s
    gaps = [round(b - a) for a, b in pairwise(ups)]
    assert gaps == sorted(gaps)
    assert (gaps[0] < 30, len(gaps) > 9, {640 <= gap < 660 for gap in gaps[8:]}) == (True, True, {True}), gaps


# Memory for another model that is short for a while.


def test_without_memory_frames_are_left_out_and_the_smaller_model_is_tried_again() -> None:
    world = World(lambda s: 4.0 if s >= 10 else 1.0, short=lambda _s: "small").run(600)
    assert world.path[:2] == [1, 2]
    assert str(world.governor.level) == "large, every 3rd frame"
    assert {round(b - a, -1) for a, b in pairwise(world.postponed_s)} <= {60, 70}
    assert len(world.postponed_s) > 7


def test_when_memory_is_free_again_the_smaller_model_runs_and_all_is_as_it_was() -> None:
    world = World(between(10, 400, 4.0), short=lambda s: "small" if s < 100 else "").run(330)
    assert (str(world.governor.level), world.loop.every) == ("small", 1)
    small = ["small", "small, every 2nd frame", "small, every 3rd frame"]
    assert [str(level) for level in world.governor.levels] == ["large", *small]
    assert str(world.run(500).governor.level) == "large"


# Streams that share a machine.

FPS, CORES = 30.0, 2
STEPS = with_steps([Level("int8", 1, 20.0)])


def _window(governor: Governor, end_s: int, missed: int = 0) -> Move | None:
    for number in range(20):
        governor.note_result(is_late=number < missed, age_ns=20 * MS, run_ns=10 * MS)
    return governor.decide(end_s * S)


def _streams(*indexes: int) -> list[Governor]:
    controller = DegradationController()
    return [Governor(STEPS, 100 * MS, 33 * MS, 0, index, controller) for index in indexes]


def test_the_one_that_stands_higher_steps_down_while_it_has_trouble_too() -> None:
    high, low = _streams(0, 3)
    assert _window(high, 2, missed=2) is None  # 10 %: not enough to step down by itself
    assert _window(low, 2, missed=10) is None
    move = _window(high, 4, missed=2)
    assert move is not None
    assert move.reason.endswith("as did a stream that runs less")


def test_trouble_that_no_other_has_is_waited_out_for_one_window() -> None:
    high, low = _streams(0, 3)
    assert _window(high, 2) is None
    assert _window(low, 2, missed=10) is None
    assert _window(high, 4) is None
    assert _window(low, 4, missed=10) is not None


def test_the_lowest_steps_up_first_and_one_at_a_time_and_one_that_is_gone_holds_up_nobody() -> None:
    high, low, gone = _streams(1, 2, 3)
    moves = {second: [bool(_window(each, second)) for each in (high, low, gone)] for second in (2, 4, 6, 8, 10)}
    assert moves == dict.fromkeys((2, 4, 6, 8), [False] * 3) | {10: [False, False, True]}
    gone.close()
    gone.close()
    assert [bool(_window(each, 12)) for each in (high, low)] == [False, False]  # the last step is not judged so far
    assert [bool(_window(each, 14)) for each in (high, low)] == [False, True]
    low.arrive(14 * S)
    assert not _window(high, 16)
    assert _window(high, 18)


# The variants of a bundle to which a pipeline may fall back.


def _variant(
    name: str, ms: float, quality: float | None = None, agreement: float | None = None, side: int = 8
) -> Variant:
    measured = quality and Quality("top-1", quality, quality, quality, fp32=0.9, images=10)
    agrees = agreement and Agreement("top1_agreement", agreement, agreement, agreement, 10, 10)
    variant = make_variant(name, side=side)
    return msgspec.structs.replace(variant, host_latency_ms=ms, quality=measured, agreement=agrees)


def _levels(*variants: Variant) -> tuple[Level, ...]:
    return levels_of(msgspec.structs.replace(make_manifest(), variants=variants))


def _names(*variants: Variant) -> list[str]:
    return list(dict.fromkeys(level.variant for level in _levels(*variants)))


def test_one_model_can_only_leave_out_frames() -> None:
    assert [str(level) for level in levels_of(make_manifest())] == [
        *("int8", "int8, 2 of 3 frames", "int8, every 2nd frame", "int8, every 3rd frame"),
        *("int8, every 4th frame", "int8, every 6th frame", "int8, every 8th frame"),
    ]


@pytest.mark.parametrize(
    ("variants", "expected"),
    [
        # The promised one first, then the faster ones, the slower of them first; nothing slower than it.
        ([_variant("int8", 10, 0.8), _variant("fp32", 30, 0.82), _variant("a", 3, 0.5), _variant("b", 6, 0.7)],
         ["int8", "b", "a"]),
        # Started with FP32, INT8 is a step down.
        ([_variant("fp32", 30, 0.82), _variant("int8", 10, 0.8)], ["fp32", "int8"]),
        # b is beaten: a is faster and better.
        ([_variant("int8", 10, 0.8), _variant("b", 6, 0.5), _variant("a", 3, 0.6)], ["int8", "a"]),
        # Of two that take equally long, the one with the larger input.
        ([_variant("int8", 10), _variant("a", 5, side=320), _variant("b", 5, side=416)], ["int8", "b"]),
        # Nine tenths of the time are no gain.
        ([_variant("int8", 10, 0.8), _variant("b", 9.5, 0.8), _variant("a", 3, 0.6)], ["int8", "a"]),
        # Without labels agreement with FP32 counts, and FP32 itself, which has none, is the measure.
        ([_variant("int8", 10, None, 0.9), _variant("fp32", 8, None, None), _variant("a", 9, None, 0.5)],
         ["int8", "fp32"]),
        # Nothing is known of the integer model, and a measured one does not give way to it, as in tuning.
        ([_variant("fp32", 30), _variant("int8", 10), _variant("int8.a", 5, None, 0.5)], ["fp32", "int8.a"]),
        # Labels count only where all variants have them.
        ([_variant("fp32", 30, 0.8), _variant("int8.b", 10, 0.9, 0.4), _variant("int8.a", 5, None, 0.5)],
         ["fp32", "int8.a"]),
    ],
)  # fmt: skip
def test_variants_stand_by_time_and_none_is_beaten(variants: list[Variant], expected: list[str]) -> None:
    assert _names(*variants) == expected


def test_frames_are_left_out_of_the_fastest_only() -> None:
    levels = _levels(_variant("int8", 10, 0.8), _variant("a", 3, 0.6))
    assert levels[:3] == (Level("int8", 1, 10), Level("a", 1, 3), Level("a", 1.5, 3))
    assert {level.variant for level in levels[1:]} == {"a"}


def test_the_boards_own_times_count_where_all_have_them() -> None:
    def with_estimate(variant: Variant, ms: float) -> Variant:
        estimate = BoardEstimate(core="cortex-a76", million_instructions=1, latency_ms=ms, low_ms=ms, high_ms=ms)
        return msgspec.structs.replace(variant, estimate=estimate)

    fp32, int8 = _variant("fp32", 10, 0.8), _variant("int8", 12, 0.8)
    assert _names(fp32, int8) == _names(with_estimate(fp32, 90), int8) == ["fp32"]
    assert _names(with_estimate(fp32, 90), with_estimate(int8, 30)) == ["fp32", "int8"]
    assert _levels(with_estimate(fp32, 90), with_estimate(int8, 30))[0].cost == 90


# Memory for one more model.


def test_a_model_for_which_memory_is_short_is_not_tried_and_what_is_not_known_stops_nothing(tmp_path: Path) -> None:
    bundle = Bundle.open(write_variants(tmp_path / "a.edge"))
    check_free_memory(bundle, "fp32", tmp_path)
    for text in ("MemAvailable: 65536 kB", "MemTotal: 1 kB", "MemAvailable:"):
        check_free_memory(bundle, "fp32", write_files(tmp_path, {"proc/meminfo": text}))
    write_files(tmp_path, {"proc/meminfo": f"MemTotal: 8000000 kB\nMemAvailable:  {64 * 1024 - 1} kB"})
    with pytest.raises(NoRoomError, match="fp32 needs about 64 MiB of memory to be loaded, 63 are free"):
        check_free_memory(bundle, "fp32", tmp_path)


def test_a_control_group_that_leaves_less_counts(tmp_path: Path) -> None:
    bundle = Bundle.open(write_variants(tmp_path / "a.edge"))
    files = {"proc/meminfo": "MemAvailable: 8000000 kB", "proc/self/cgroup": "0::/edge.service"}
    group = write_files(tmp_path, files) / "sys/fs/cgroup/edge.service"
    memory = {"memory.max": f"{100 * 2**20}", "memory.current": f"{70 * 2**20}"}
    write_files(group, {**memory, "memory.stat": "anon 73400320\ninactive_file 0\nslab_reclaimable 0"})
    with pytest.raises(NoRoomError, match="fp32 needs about 64 MiB of memory to be loaded, 30 are free"):
        check_free_memory(bundle, "fp32", tmp_path)
    # Files that somebody read are given back before anybody is killed.
    given_back = "anon 31457280\ninactive_file 41943040\nactive_file 9\nslab_reclaimable 4096"
    for change in ({"memory.stat": given_back}, {"memory.stat": "anon 73400320", "memory.max": "max"}):
        write_files(group, change)
        check_free_memory(bundle, "fp32", tmp_path)


def test_that_memory_is_short_is_said_once_until_the_model_was_there(tmp_path: Path) -> None:
    folder, is_short, tried = write_graded(tmp_path / "graded.edge"), True, list[str]()

    def open_stages(variant: str) -> Stages:
        tried.append(variant)
        if is_short:
            raise NoRoomError("9 MiB are free")
        return open_variant(folder, variant)

    scene = Scene(folder, open_stages=open_stages)
    scene.until(lambda: len(tried) == 3)
    lines = [line for line in scene.said if "memory" in line]
    assert lines == [f"{SMALL} is left out until memory is free: 9 MiB are free"]
    assert (scene.variant, scene.alive) == (LARGE, 1)
    is_short = False
    scene.until(lambda: scene.variant == SMALL)
    assert scene.loop.every == 1
    scene.governing.close()


def test_a_run_looks_for_room_before_it_loads_another_model(tmp_path: Path) -> None:
    bundle = Bundle.open(write_graded(tmp_path / "graded.edge"))
    huge = {f"model.{SMALL}.ort": 2**50}
    files = [msgspec.structs.replace(f, size=huge.get(f.name, f.size)) for f in bundle.manifest.files]
    bundle.manifest = msgspec.structs.replace(bundle.manifest, files=tuple(files))
    settings = PipelineSettings(bundle=bundle.path, source="0", tune=False)
    steering = ModelSelector(settings, bundle, SessionSettings(), 100.0, lambda: False)
    with pytest.raises(NoRoomError, match=f"{SMALL} needs about .* MiB of memory to be loaded"):
        steering.open_beside(SMALL)
