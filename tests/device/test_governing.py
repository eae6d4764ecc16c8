"""The governor at work: real models loaded beside a loop whose clock is moved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_sdk.loop import Tick
from edge_sdk.publishing import Running
from edge_sdk.throttling import BoardWatch
from tests.device.governed import Scene
from tests.device.graded import LARGE, SMALL, write_graded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_graded(tmp_path / "graded.edge")


@pytest.fixture
def scene(folder: Path) -> Iterator[Scene]:
    scene = Scene(folder)
    yield scene
    scene.governing.close()


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


def test_a_fixed_variant_only_leaves_out_frames_and_stops_doing_so(folder: Path) -> None:
    scene = Scene(folder, fixed=True)
    scene.until(lambda: scene.loop.every == 3)
    assert scene.announced[-1].rung == 3
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


def test_what_the_board_writes_into_its_files_moves_the_stream(folder: Path, tmp_path: Path) -> None:
    firmware = tmp_path / "sys/devices/platform/soc/soc:firmware/get_throttled"
    firmware.parent.mkdir(parents=True)
    firmware.write_text("0\n")
    watch = BoardWatch(tmp_path / "sys")
    scene = Scene(folder, throttled=lambda: watch.state.throttled)
    scene.costs_ms[LARGE] = 10.0
    scene.run(30)
    assert scene.said == []
    firmware.write_text("4\n")
    scene.until(lambda: scene.variant == SMALL)
    assert scene.announced[-1].reason == "the board throttles: the firmware throttles"
    scene.run(60)
    assert scene.variant == SMALL  # as long as it is hot
    firmware.write_text("40000\n")  # it was so once
    scene.until(lambda: scene.variant == LARGE)
    scene.governing.close()
    watch.close()
