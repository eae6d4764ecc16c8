"""The governor at work: real models loaded beside a loop whose clock is moved by hand."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_sdk.budget import Budget
from edge_sdk.bundle import Bundle
from edge_sdk.daemon.governing import Governing
from edge_sdk.errors import IncompatibleError
from edge_sdk.frame import Frame, Result
from edge_sdk.loop import Loop, Tick
from edge_sdk.publishing import Running
from edge_sdk.stages import Stages
from tests.device.graded import LARGE, SMALL, open_variant, write_graded
from tests.device.simulated import MS, Camera, Clock

WAIT_S = 20.0


class Scene:
    """A loop under a governor. Delivering a result takes what `costs_ms` says of the variant that made it."""

    def __init__(
        self,
        folder: Path,
        *,
        fixed: bool = False,
        start: str = LARGE,
        open_stages: Callable[[str], Stages] | None = None,
    ) -> None:
        self.folder, self.clock = folder, Clock()
        self.costs_ms = {LARGE: 150.0, SMALL: 5.0}
        self.heat = ""
        self.said: list[str] = []
        self.announced: list[Running] = []
        self.opened: list[weakref.ref[Stages]] = []
        self.most_alive = 0
        self.is_held = False
        self.camera, self.camera_delay_ms = Camera(self.clock, 100, 10**9), 0.0
        self.loop = Loop(self, self.open(start), self, Budget(100), clock_ns=self.clock)
        self.governing = Governing(
            Bundle.open(folder).manifest,
            open_stages or self.open,
            limit_ns=100 * MS,
            fps=10,
            fixed=fixed,
            say=self.said.append,
            announce=self.announced.append,
            throttled=lambda: self.heat,
            is_held=lambda: self.is_held,
            clock_ns=self.clock,
        )
        self.governing.begin(self.loop, "start")

    def open(self, variant: str) -> Stages:
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_graded(tmp_path / "graded.edge")


@pytest.fixture
def scene(folder: Path) -> Iterator[Scene]:
    scene = Scene(folder)
    yield scene
    scene.governing.close()


def test_down_and_up_again_with_at_most_two_models_loaded(scene: Scene) -> None:
    assert scene.announced == [Running(variant=LARGE, every=1, rung=0, rungs=7, reason="start")]
    scene.until(lambda: scene.variant == SMALL)
    assert scene.said[-1].startswith(f"from {LARGE} to {SMALL}: ")
    assert "missed 100 ms" in scene.said[-1]
    assert scene.announced[-1] == Running(
        variant=SMALL, every=1, rung=1, rungs=7, reason=scene.said[-1].partition(": ")[2]
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


def test_the_loop_goes_on_while_a_model_is_loaded(folder: Path) -> None:
    is_loading, may_end = threading.Event(), threading.Event()

    def open_slowly(variant: str) -> Stages:
        is_loading.set()
        assert may_end.wait(WAIT_S)
        return open_variant(folder, variant)

    scene = Scene(folder, open_stages=open_slowly)
    scene.until(is_loading.is_set)
    before = scene.loop.counts[Tick.LATE]
    scene.run(60)
    assert scene.loop.counts[Tick.LATE] >= before + 50
    assert scene.said == []
    may_end.set()
    scene.until(lambda: scene.variant == SMALL)
    scene.governing.close()


@pytest.mark.parametrize("failure", [IncompatibleError("another machine"), MemoryError("2 GB\nat once")])
def test_what_does_not_load_is_said_once_and_left_out(folder: Path, failure: Exception) -> None:
    def refuse(variant: str) -> Stages:
        raise failure

    scene = Scene(folder, open_stages=refuse)
    scene.until(lambda: len(scene.said) == 1)
    said = "another machine" if isinstance(failure, IncompatibleError) else "MemoryError: 2 GB"
    assert scene.said == [f"{SMALL} does not load here and is left out: {said}"]
    scene.run(300)
    assert sum("does not load" in line for line in scene.said) == 1
    assert scene.variant == LARGE
    assert scene.loop.every > 1  # of what is left, frames are left out
    scene.governing.close()


def test_a_fixed_variant_only_leaves_out_frames_and_stops_doing_so(folder: Path) -> None:
    scene = Scene(folder, fixed=True)
    scene.until(lambda: scene.loop.every == 3)
    assert scene.announced[-1].rung == 2
    assert scene.said[-1].startswith(f"from {LARGE}, every 2nd frame to {LARGE}, every 3rd frame: ")
    scene.costs_ms[LARGE] = 10.0
    scene.until(lambda: scene.loop.every == 1)
    assert len(scene.opened) == 1
    scene.governing.close()


def test_a_stream_that_starts_below_the_top_steps_up_when_there_is_room(folder: Path) -> None:
    scene = Scene(folder, start=SMALL)
    assert (scene.announced[-1].rung, scene.announced[-1].variant) == (1, SMALL)
    scene.costs_ms[LARGE] = 10.0
    scene.until(lambda: scene.variant == LARGE)
    scene.governing.close()


def test_what_another_supervisor_chose_is_the_top_from_then_on(scene: Scene) -> None:
    scene.loop.stages = scene.open(SMALL)
    scene.step()
    assert scene.announced[-1] == Running(variant=SMALL, every=1, rung=0, rungs=6, reason="chosen by measurement")
    scene.costs_ms[LARGE] = 10.0
    scene.run(300)
    assert scene.variant == SMALL
    assert scene.said == []


def test_what_was_being_loaded_is_given_up_when_another_supervisor_chooses(folder: Path) -> None:
    is_loading, may_end = threading.Event(), threading.Event()
    given: list[weakref.ref[Stages]] = []

    def open_slowly(variant: str) -> Stages:
        is_loading.set()
        assert may_end.wait(WAIT_S)
        stages = open_variant(folder, variant)
        given.append(weakref.ref(stages))
        return stages

    scene = Scene(folder, open_stages=open_slowly)
    scene.until(is_loading.is_set)
    scene.loop.stages = chosen = scene.open(SMALL)
    scene.step()
    scene.costs_ms[SMALL] = 6.0
    may_end.set()
    scene.until(lambda: bool(given) and given[0]() is None)
    assert scene.loop.stages is chosen
    assert scene.said == []
    scene.governing.close()


def test_nothing_is_judged_while_another_supervisor_tries_models(scene: Scene) -> None:
    scene.is_held = True
    scene.run(120)
    assert scene.said == []
    scene.is_held = False
    scene.until(lambda: scene.variant == SMALL)


def test_a_backlog_of_frames_that_come_too_old_is_nobodys_fault(folder: Path) -> None:
    scene = Scene(folder, fixed=True)  # whose steps take no time
    scene.costs_ms[LARGE] = 10.0
    scene.camera_delay_ms = 1000.0
    scene.run(30)
    assert scene.loop.counts[Tick.STALE] > 100
    assert scene.said == []
    scene.camera_delay_ms = 0.0
    scene.run(30)
    assert scene.step() is Tick.ON_TIME
    scene.governing.close()


def test_a_board_that_throttles_is_relieved(scene: Scene) -> None:
    scene.costs_ms[LARGE] = 10.0
    scene.run(30)
    assert scene.said == []
    scene.heat = "the firmware throttles"
    scene.until(lambda: scene.variant == SMALL)
    assert scene.announced[-1].reason == "the board throttles: the firmware throttles"
