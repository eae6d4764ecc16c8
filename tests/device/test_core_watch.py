"""Cores that are taken away and given back while a stream runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_sdk.cores import Cores
from edge_sdk.daemon.core_watch import CoreWatch
from edge_sdk.errors import NoRoomError
from edge_sdk.stages import Stages
from tests.device.governed import WAIT_S, Scene
from tests.device.graded import LARGE, SMALL, write_graded
from tests.device.measured import cores


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def _threads(scene: Scene) -> int:
    assert isinstance(scene.loop.stages, Stages)
    return scene.loop.stages.threads


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(write_graded(tmp_path / "graded.edge"), threads=4)
    scene.costs_ms[LARGE] = 10.0
    yield scene
    scene.governing.close()


def test_what_two_readings_agree_on_counts() -> None:
    readings = iter([4, 2, 4, 1, 3, 3, *[3] * 10_000])
    taken: list[int] = []

    def read() -> Cores:
        taken.append(next(readings))
        return cores(taken[-1])

    watch, seen = CoreWatch(read, interval_s=0.001), list[int]()
    while len(taken) < 20:
        seen.append(watch.cores.usable)
    _wait_for(lambda: watch.cores.usable == 3)
    assert set(seen) <= {4, 3}
    watch.close()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no core to take away")
def test_a_core_that_the_kernel_takes_away_is_seen_and_one_that_it_gives_back_too() -> None:
    before = os.sched_getaffinity(0)
    watch = CoreWatch(interval_s=0.01)
    whole = watch.cores.allowed
    try:
        os.sched_setaffinity(0, {min(before)})
        _wait_for(lambda: watch.cores.allowed == 1)
    finally:
        os.sched_setaffinity(0, before)
    _wait_for(lambda: watch.cores.allowed == whole)
    watch.close()


def test_fewer_cores_are_said_once_and_the_model_goes_on_with_fewer_threads(scene: Scene) -> None:
    scene.run(10)
    assert (scene.said, _threads(scene)) == ([], 4)
    scene.cores, scene.threads = cores(1), 1
    scene.until(lambda: _threads(scene) == 1)
    assert scene.said == [
        f"cores that may be used: 1 now, 4 before; {LARGE} is loaded again for 1 thread",
        f"{LARGE} runs on 1 thread now",
    ]
    scene.until(lambda: scene.alive == 1)
    scene.run(60)
    assert len(scene.said) == 2
    assert (scene.most_alive, scene.governing._governor.index) == (2, 0)
    scene.cores, scene.threads = cores(4), 4
    scene.until(lambda: _threads(scene) == 4)


def test_cores_that_no_thread_needs_are_said_and_nothing_is_loaded(scene: Scene) -> None:
    scene.cores = cores(5)
    scene.run(10)
    assert scene.said == ["cores that may be used: 5 now, 4 before"]
    assert len(scene.opened) == 1


def test_a_stream_that_misses_for_want_of_cores_steps_down_all_the_same(scene: Scene) -> None:
    scene.cores, scene.threads = cores(1), 1
    scene.costs_ms[LARGE] = 150.0
    scene.until(lambda: scene.variant == SMALL)
    assert _threads(scene) == 1


def test_fewer_threads_come_even_where_the_stream_misses_and_the_smaller_model_has_no_room(tmp_path: Path) -> None:
    def refuse(variant: str) -> None:
        if variant == SMALL:
            raise NoRoomError("9 MiB are free")

    scene = Scene(write_graded(tmp_path / "graded.edge"), threads=4, prepare=refuse)
    scene.cores, scene.threads = cores(1), 1  # and its runs are late from the first one on
    scene.until(lambda: len(scene.said) == 3)
    assert scene.said == [
        f"cores that may be used: 1 now, 4 before; {LARGE} is loaded again for 1 thread",
        f"{LARGE} runs on 1 thread now",
        f"{SMALL} is left out until memory is free: 9 MiB are free",
    ]
    assert (scene.variant, _threads(scene)) == (LARGE, 1)
    scene.until(lambda: scene.alive == 1)
    assert scene.most_alive == 2
    scene.governing.close()


def test_what_cannot_be_loaded_again_keeps_its_threads(tmp_path: Path) -> None:
    def refuse(variant: str) -> None:
        raise NoRoomError("9 MiB are free")

    scene = Scene(write_graded(tmp_path / "graded.edge"), threads=2, prepare=refuse)
    scene.costs_ms[LARGE] = 10.0
    scene.cores, scene.threads = cores(1), 1
    scene.until(lambda: len(scene.said) == 2)
    assert scene.said[1] == f"{LARGE} keeps the threads that it has: 9 MiB are free"
    scene.run(60)
    assert (_threads(scene), len(scene.said), len(scene.opened)) == (2, 2, 1)
    scene.governing.close()
