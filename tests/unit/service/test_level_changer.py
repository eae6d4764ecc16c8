"""A pipeline moves between levels: real models loaded beside a loop whose clock is moved by hand."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_sdk.core.errors import IncompatibleError, StoppedError
from edge_sdk.inference.session import Stages
from edge_sdk.loop import Tick
from edge_sdk.messages.schema import Running
from tests.support.bundles import LARGE, SMALL, open_variant, write_graded
from tests.support.loops import WAIT_S, Camera, Scene

Make = Callable[..., Scene]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes scenes whose governors give their threads back."""
    made = list[Scene]()

    def make_one(**changes: Any) -> Scene:
        made.append(Scene(write_graded(tmp_path / "graded.edge"), **changes))
        return made[-1]

    yield make_one
    for scene in made:
        scene.governing.close()


@pytest.fixture
def scene(make: Make) -> Scene:
    return make()


def test_down_and_up_again_with_at_most_two_models_loaded(scene: Scene) -> None:
    assert scene.announced == [Running(variant=LARGE, every=1, level=0, levels=8, reason="start")]
    scene.until(lambda: scene.variant == SMALL)
    line, reason = scene.said[-1], scene.said[-1].partition(": ")[2]
    assert line.startswith(f"from {LARGE} to {SMALL}: ")
    assert "missed 100 ms" in reason
    assert scene.announced[-1] == Running(variant=SMALL, every=1, level=1, levels=8, reason=reason)
    scene.until(lambda: scene.alive == 1)
    scene.costs_ms[LARGE] = 10.0
    scene.until(lambda: scene.variant == LARGE)
    assert scene.said[-1].startswith(f"from {SMALL} to {LARGE}: quiet for ")
    assert scene.announced[-1].level == 0
    scene.until(lambda: scene.alive == 1)
    scene.run(60)
    assert (scene.most_alive, len(scene.said)) == (2, 2)


def test_the_time_of_a_second_model_moves_no_level(make: Make) -> None:
    scene = make(then_ms=95.0)
    scene.camera = Camera(scene.clock, 200, 10**9)  # slow enough that no frame waits for the one before it
    scene.until(lambda: scene.variant == SMALL)
    scene.costs_ms[LARGE] = 10.0
    scene.until(lambda: scene.variant == LARGE)
    scene.run(60)
    assert scene.loop.counts[Tick.LATE] > 100
    assert len(scene.said) == 2


def test_a_fixed_variant_only_leaves_out_frames_and_stops_doing_so(make: Make) -> None:
    scene = make(fixed=True)
    scene.until(lambda: scene.loop.every == 3)
    assert scene.announced[-1].level == 3
    assert scene.said[-1].startswith(f"from {LARGE}, every 2nd frame to {LARGE}, every 3rd frame: ")
    scene.costs_ms[LARGE] = 10.0
    scene.until(lambda: scene.loop.every == 1)
    assert len(scene.opened) == 1


def test_what_another_supervisor_chose_is_the_top_from_then_on(scene: Scene) -> None:
    scene.loop.stages = scene.open(SMALL)
    scene.step()
    assert scene.announced[-1] == Running(variant=SMALL, every=1, level=0, levels=7, reason="chosen by measurement")
    scene.costs_ms[LARGE] = 10.0
    scene.run(300)
    assert (scene.variant, scene.said) == (SMALL, [])


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
    scene.heat = "the firmware throttles"
    scene.until(lambda: scene.variant == SMALL)
    assert scene.announced[-1].reason == "the board throttles: the firmware throttles"
    scene.heat = ""
    scene.until(lambda: scene.variant == LARGE)


def test_the_state_says_once_that_tuning_is_over(scene: Scene) -> None:
    scene.is_held = True
    scene.governing.begin(LARGE, "start")
    for scene.is_held in (True, True, False, False):
        scene.step()
    assert [state.tuning for state in scene.announced] == [msgspec.UNSET, True, msgspec.UNSET]
    scene.governing.begin(LARGE, "start")
    scene.loop.stages = scene.open(SMALL)
    for scene.is_held in (True, False, False):
        scene.step()
    assert [(state.variant, state.tuning) for state in scene.announced[4:]] == [(SMALL, msgspec.UNSET)]


# Loading beside the loop.


def test_the_loop_goes_on_while_a_model_is_loaded(make: Make) -> None:
    is_loading, may_end = threading.Event(), threading.Event()

    def open_slowly(variant: str) -> Stages:
        is_loading.set()
        assert may_end.wait(WAIT_S)
        return open_variant(slow.folder, variant)

    slow = make(open_stages=open_slowly)
    slow.until(is_loading.is_set)
    before = slow.loop.counts[Tick.LATE]
    slow.run(60)
    assert slow.loop.counts[Tick.LATE] >= before + 50
    assert slow.said == []
    may_end.set()
    slow.until(lambda: slow.variant == SMALL)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (IncompatibleError("another machine"), "does not load here and is left out: another machine"),
        (ValueError("no\nsuch"), "does not load here and is left out: this is a bug in edge-sdk: ValueError: no"),
        (MemoryError("2 GB at once"), "is left out until memory is free: out of memory: "),
    ],
    ids=["incompatible", "bug", "memory"],
)
def test_a_model_that_does_not_load_is_said_once_and_left_out(make: Make, failure: Exception, said: str) -> None:
    def refuse(variant: str) -> Stages:
        raise failure

    scene = make(open_stages=refuse)
    scene.until(lambda: len(scene.said) == 1)
    assert scene.said[0].startswith(f"{SMALL} {said}")
    if not isinstance(failure, MemoryError):  # for good
        scene.run(300)
        assert sum("does not load" in line for line in scene.said) == 1
        assert (scene.variant, scene.loop.every > 1) == (LARGE, True)  # of what is left, frames are left out


def test_a_load_that_hangs_is_given_up_and_the_model_left_out(make: Make) -> None:
    may_end = threading.Event()

    def hang(variant: str) -> Stages:
        may_end.wait()
        return open_variant(hung.folder, variant)

    hung = make(open_stages=hang, load_s=0.1)
    try:
        hung.until(lambda: hung.loop.every > 1)
    finally:
        may_end.set()
    assert hung.said[0] == f"{SMALL} does not load here and is left out: the model did not load within 0 s"


def test_a_stop_while_a_model_is_loaded_is_no_fault_of_the_model(make: Make) -> None:
    is_asked = threading.Event()

    def open_stopped(variant: str) -> Stages:
        is_asked.set()
        raise StoppedError

    scene = make(open_stages=open_stopped)
    scene.until(is_asked.is_set)
    scene.governing.close()  # waits for the thread
    scene.run(60)
    assert (scene.said, scene.variant, scene.loop.every) == ([], LARGE, 1)
