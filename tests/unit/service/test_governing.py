"""The governor at work: real models loaded beside a loop whose clock is moved by hand, on cores that come and go."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.core.errors import NoRoomError
from edge_sdk.core.machine import Cores
from edge_sdk.inference.stages import Stages
from edge_sdk.loop import Tick
from edge_sdk.messages.schema import Running
from edge_sdk.service.monitors import CoreWatch
from tests.support.bundles import LARGE, SMALL, write_graded
from tests.support.connections import until
from tests.support.loops import Scene
from tests.support.results import cores

Make = Callable[..., Scene]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes scenes whose governors give their threads back."""
    with contextlib.ExitStack() as stack:

        def make_one(**changes: Any) -> Scene:
            made = Scene(write_graded(tmp_path / "graded.edge"), **changes)
            stack.callback(made.governing.close)
            return made

        yield make_one


@pytest.fixture
def scene(make: Make) -> Scene:
    return make()


def test_down_and_up_again_with_at_most_two_models_loaded(scene: Scene) -> None:
    assert scene.announced == [Running(variant=LARGE, every=1, rung=0, rungs=8, reason="start")]
    scene.until(lambda: scene.variant == SMALL)
    assert scene.said[-1].startswith(f"from {LARGE} to {SMALL}: ")
    assert "missed 100 ms" in scene.said[-1]
    assert scene.announced[-1] == Running(
        variant=SMALL, every=1, rung=1, rungs=8, reason=scene.said[-1].partition(": ")[2]
    )
    scene.until(lambda: scene.alive == 1)
    scene.costs_ms[LARGE] = 10.0
    scene.until(lambda: scene.variant == LARGE)
    assert scene.said[-1].startswith(f"from {SMALL} to {LARGE}: quiet for ")
    assert scene.announced[-1].rung == 0
    scene.until(lambda: scene.alive == 1)
    assert scene.most_alive == 2
    scene.run(60)
    assert len(scene.said) == 2


def test_a_fixed_variant_only_leaves_out_frames_and_stops_doing_so(make: Make) -> None:
    scene = make(fixed=True)
    scene.until(lambda: scene.loop.every == 3)
    assert scene.announced[-1].rung == 3
    assert scene.said[-1].startswith(f"from {LARGE}, every 2nd frame to {LARGE}, every 3rd frame: ")
    scene.costs_ms[LARGE] = 10.0
    scene.until(lambda: scene.loop.every == 1)
    assert len(scene.opened) == 1


def test_a_stream_that_starts_below_the_top_steps_up_when_there_is_room(make: Make) -> None:
    scene = make(start=SMALL)
    assert (scene.announced[-1].rung, scene.announced[-1].variant) == (1, SMALL)
    scene.costs_ms[LARGE] = 10.0
    scene.until(lambda: scene.variant == LARGE)


def test_what_another_supervisor_chose_is_the_top_from_then_on(scene: Scene) -> None:
    scene.loop.stages = scene.open(SMALL)
    scene.step()
    assert scene.announced[-1] == Running(variant=SMALL, every=1, rung=0, rungs=7, reason="chosen by measurement")
    scene.costs_ms[LARGE] = 10.0
    scene.run(300)
    assert scene.variant == SMALL
    assert scene.said == []


def test_nothing_is_judged_while_another_supervisor_tries_models(scene: Scene) -> None:
    scene.is_held = True
    scene.run(120)
    assert scene.said == []
    scene.is_held = False
    scene.until(lambda: scene.variant == SMALL)


def test_a_backlog_of_frames_that_come_too_old_is_not_judged(make: Make) -> None:
    scene = make(fixed=True)  # whose steps take no time
    scene.costs_ms[LARGE] = 10.0
    scene.camera_delay_ms = 1000.0
    scene.run(30)
    assert scene.loop.counts[Tick.STALE] > 100
    assert scene.said == []
    scene.camera_delay_ms = 0.0
    scene.run(30)
    assert scene.step() is Tick.ON_TIME


def test_a_board_that_throttles_is_relieved_for_as_long_as_it_does(scene: Scene) -> None:
    scene.costs_ms[LARGE] = 10.0
    scene.run(30)
    assert scene.said == []
    scene.heat = "the firmware throttles"
    scene.until(lambda: scene.variant == SMALL)
    assert scene.announced[-1].reason == "the board throttles: the firmware throttles"
    scene.run(60)
    assert scene.variant == SMALL
    scene.heat = ""
    scene.until(lambda: scene.variant == LARGE)


# Cores that are taken away and given back while a stream runs.


def _threads(scene: Scene) -> int:
    assert isinstance(scene.loop.stages, Stages)
    return scene.loop.stages.threads


def test_a_number_of_cores_counts_once_two_readings_agree_on_it() -> None:
    readings = iter([4, 2, 4, 1, 3, 3, *[3] * 10_000])
    taken: list[int] = []

    def read() -> Cores:
        taken.append(next(readings))
        return cores(taken[-1])

    watch, seen = CoreWatch(read, interval_s=0.001), list[int]()
    while len(taken) < 20:
        seen.append(watch.cores.usable)
    until(lambda: watch.cores.usable == 3)
    assert set(seen) <= {4, 3}
    watch.close()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no core to take away")
def test_a_core_that_the_kernel_takes_away_is_seen_and_one_that_it_gives_back_too() -> None:
    before, watch = os.sched_getaffinity(0), CoreWatch(interval_s=0.01)
    whole = watch.cores.allowed
    try:
        os.sched_setaffinity(0, {min(before)})
        until(lambda: watch.cores.allowed == 1)
    finally:
        os.sched_setaffinity(0, before)
    until(lambda: watch.cores.allowed == whole)
    watch.close()


def test_fewer_cores_are_said_once_and_the_model_goes_on_with_fewer_threads(make: Make) -> None:
    scene = make(threads=4)
    scene.costs_ms[LARGE] = 10.0
    scene.cores = cores(5)
    scene.run(10)
    assert scene.said == ["cores that may be used: 5 now, 4 before"]  # no thread needs the fifth
    assert (len(scene.opened), _threads(scene)) == (1, 4)
    scene.cores, scene.threads = cores(1), 1
    scene.until(lambda: _threads(scene) == 1)
    assert scene.said[1:] == [
        f"cores that may be used: 1 now, 5 before; {LARGE} is loaded again for 1 thread",
        f"{LARGE} runs on 1 thread now",
    ]
    scene.until(lambda: scene.alive == 1)
    scene.run(60)
    assert len(scene.said) == 3
    assert (scene.most_alive, scene.governing._governor.index) == (2, 0)
    scene.cores, scene.threads = cores(4), 4
    scene.until(lambda: _threads(scene) == 4)


def test_a_stream_that_misses_for_want_of_cores_steps_down_all_the_same(make: Make) -> None:
    scene = make(threads=4)
    scene.cores, scene.threads = cores(1), 1
    scene.until(lambda: scene.variant == SMALL)
    assert _threads(scene) == 1


def test_a_model_that_cannot_be_loaded_again_keeps_its_threads(make: Make) -> None:
    def refuse(variant: str) -> None:
        raise NoRoomError("9 MiB are free")

    scene = make(threads=2, prepare=refuse)
    scene.costs_ms[LARGE] = 10.0
    scene.cores, scene.threads = cores(1), 1
    scene.until(lambda: len(scene.said) == 2)
    assert scene.said[1] == f"{LARGE} keeps the threads that it has: 9 MiB are free"
    scene.run(60)
    assert (_threads(scene), len(scene.said), len(scene.opened)) == (2, 2, 1)
